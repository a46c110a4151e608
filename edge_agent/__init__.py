"""One host's agent: records into windows, windows into sealed reports, and what its owner sees."""
