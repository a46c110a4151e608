"""Launches of GPU kernels from the files of several profilers. Files are untrusted."""
