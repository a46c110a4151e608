"""Formats: messages, metric catalogue, topics; bytes in, frozen dataclasses out. Pure."""
