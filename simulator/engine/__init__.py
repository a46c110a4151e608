"""From what hosts measured to what is released, in three fidelities behind one port.

`exact`   every report encoded, sealed, sent through a log, opened, checked, summed and released by
          the production state machines, batched
`masked`  real encoding, noise and masks, summed as both parties do; no sealing and no transport
`noise`   the true rows clipped and rounded, plus noise of the summed distribution

All three release the same distribution. With the same seed `exact` and `masked` release the very
same vectors, and all three the same truth and the same rounding. Docs: docs/simulator-model.md.
"""
