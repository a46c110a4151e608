"""How good a diagnosis is on a dataset of recordings whose faults are known; no agent runs it."""
