"""What the parties' records say of each other: exports, checks, one host's report."""
