"""What a host measures: a room a collector, what they say (records), how they are asked (port)."""
