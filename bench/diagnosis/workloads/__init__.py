"""Programs whose steps are watched; run by the system's Python, so only its library and torch."""
