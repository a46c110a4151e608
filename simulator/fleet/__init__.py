"""The simulated fleet: hosts, jobs, faults and load; it repeats bit for bit from a scenario's seed.

Numbers and their sources: docs/simulator-model.md.
"""
