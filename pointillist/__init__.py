"""The pointillist command and the composition of a local fleet."""
