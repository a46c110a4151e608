"""Why was it slow: frames of a host, detection and causes, stragglers of a job."""
