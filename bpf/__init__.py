"""Probe programs that run in the kernel and in the observed process."""
