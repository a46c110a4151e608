"""What stays on this host: raw history, the live view, the agent's own counters and state."""
