"""Stragglers: which rank of one job is slow, and who waited for whom. The operator's own data."""
