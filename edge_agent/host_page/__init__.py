"""This host's own pages, drawn for its owner on loopback by a process of its own."""
