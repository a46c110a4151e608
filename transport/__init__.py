"""What agents and aggregators both stand on: the log, files, settings and processes."""
