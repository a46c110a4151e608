"""GPU kernels by name: families, mixes, application signatures, launches from files.

Pure but for reading files; the rules are data.
"""
