"""Where measurements come from."""
