"""Who takes part, and in what: vouchers, join requests, rosters, tasks, and their files."""
