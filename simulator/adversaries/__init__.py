"""Who does not follow the protocol, played against the production state machines, unchanged."""
