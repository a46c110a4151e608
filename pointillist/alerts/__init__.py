"""Facts that somebody should be told: drifts of a fleet, incidents of a host's own jobs."""
