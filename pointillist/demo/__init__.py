"""A whole fleet on one machine: Leader, Helper, many hosts and this one, for a single run."""
