"""From records to the integer vector of a window."""
