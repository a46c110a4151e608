"""The Helper: checks a batch by its own rules, and answers once with the sum of its masks."""
