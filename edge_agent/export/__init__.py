"""Raw numbers of this host for its operator's own monitors, where the operator asks for them."""
