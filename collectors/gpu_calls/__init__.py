"""GPU calls seen from outside: probes on CUDA, NCCL, HIP and RCCL, drawn up as tables of data."""
