"""Methods that find spikes and their causes, compared on the same recordings."""
