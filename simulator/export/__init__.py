"""A simulated fleet before running aggregators: real identities, real enrolment, real transport.

The hosts are enrolled as live ones are: each makes its key and a join request with a one-use token,
the Leader's operator builds the roster, the Helper's countersigns it. Then one process of the
production agent's loop plays all of them, window by window on the wall clock; only what they
measured comes from the fleet model. Docs: docs/simulate.md.
"""
