"""Causes of tail latency, learned and judged: training, comparison of methods, groups of unknowns.

Nothing here runs in an agent. Agents evaluate the model file that training writes.
"""
