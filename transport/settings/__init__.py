"""Configuration: TOML into frozen dataclasses, and addresses as people write them."""
