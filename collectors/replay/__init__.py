"""A recorded trace, played as this host's GPU activity."""
