"""This host's own pages: what its agent keeps, drawn for its owner, on loopback alone.

A process of its own reads the history, the journal, the ledger and the agent's socket; the agent
loads nothing of this, and what is shown leaves the host by no way.
"""
