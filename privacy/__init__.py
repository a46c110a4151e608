"""Arithmetic, noise, masks, budgets and keys. Pure: no clock, no I/O, no global randomness."""
