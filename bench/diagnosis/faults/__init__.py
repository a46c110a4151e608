"""Injectors: each makes one real fault, and shows by a counter of its own that it did."""
