"""Steps by named functions of programs."""
