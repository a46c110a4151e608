"""The fault bench: workloads, real faults of known causes, and recordings of both as frames."""
