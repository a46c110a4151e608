"""How good a diagnosis is: judged on a dataset of recordings whose faults are known.

Nothing here runs in an agent.
"""
