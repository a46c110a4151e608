"""From what hosts measured to what is released, in three fidelities: exact, masked, noise.

All release the same distribution; with one seed `exact` and `masked` release the same vectors, and
all three the same truth and rounding. Docs: docs/simulator-model.md.
"""
