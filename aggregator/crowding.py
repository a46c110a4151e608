"""What is lost because a host reports at most so many of its causes, drawn at random.

Released sums do not say which causes came together, so this corrects nothing: it says how low the
numbers are if causes strike independently. Docs: docs/root-causes.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .ratios import Floats

_ROUNDS: Final = 60
_CLOSE: Final = 1e-6


def lost_if_independent(reported: Floats, most: int) -> float:
    """Estimate which part of all hosts' causes went unreported.

    reported    float64[k], share of the hosts that reported each cause
    most        causes that a host reports at most; those it reports are drawn at random
    Returns     0..1; causes that come together lose more, those that exclude each other less
    """
    told = np.clip(np.asarray(reported, np.float64), 0.0, 1.0)
    true = told
    for _ in range(_ROUNDS):
        kept = np.array([_kept(np.delete(true, place), most) for place in range(len(true))])
        better = np.minimum(told / kept, 1.0)
        if np.allclose(better, true, atol=_CLOSE):
            break
        true = better
    whole = float(true.sum())
    return max(0.0, 1 - float(told.sum()) / whole) if whole else 0.0


def _kept(others: Floats, most: int) -> float:
    """Probability that a host reports one of its causes, the others striking at these rates."""
    count = np.ones(1)
    for share in others:
        count = np.convolve(count, [1 - share, share])
    beside = np.arange(len(count))
    return float(count @ np.minimum(1.0, most / (1 + beside)))
