"""GPU kernels by name: families, mixes, application signatures, launches from files."""
