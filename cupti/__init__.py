"""The library that GPU programs load to have their kernels timed; its Makefile builds it."""
