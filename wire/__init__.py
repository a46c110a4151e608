"""Formats: messages, codec, metric catalogue, topic names. Pure."""
