"""Leader, Helper, statistics and store."""
