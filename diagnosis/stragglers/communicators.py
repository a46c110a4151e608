"""Which ranks share a communicator, where a trace does not say: those that leave together; pure."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

_TOGETHER_S: Final = 0.001
"""In a recorded 64-GPU job members leave within 0.15 ms; other communicators 1.5 ms or more off."""
_SHARE: Final = 0.9
_MOST_CALLS: Final = 64
_MOST_RANKS: Final = 1_024

Indices = NDArray[np.int64]


def together(
    name: Indices, step: Indices, count: Indices, rank: Indices, left_s: NDArray[np.float64]
) -> Indices:
    """Number the communicator of each entry into a collective: int64[n].

    Two ranks share one when they left at least nine in ten of the calls of a name, by step and
    count, within a millisecond of each other. Clocks that disagree leave each rank alone.
    """
    group = np.zeros(len(name), dtype=np.int64)
    numbered = 0
    for one in np.unique(name):
        mine = np.flatnonzero(name == one)
        ranks, place = np.unique(rank[mine], return_inverse=True)
        member = np.arange(len(ranks), dtype=np.int64)
        if len(ranks) <= _MOST_RANKS:
            ends = _ends(step[mine], count[mine], place.reshape(-1), left_s[mine], len(ranks))
            _, parts = connected_components(_close(ends), directed=False)
            member = parts.astype(np.int64)
        group[mine] = numbered + member[place.reshape(-1)]
        numbered += len(ranks)
    return group


def _ends(
    step: Indices, count: Indices, place: Indices, left_s: NDArray[np.float64], ranks: int
) -> NDArray[np.float64]:
    """When ranks left some calls, float64[ranks, calls], evenly taken; NaN: was not there."""
    calls, call = np.unique(np.column_stack((step, count)), axis=0, return_inverse=True)
    ends = np.full((ranks, len(calls)), np.nan)
    ends[place, np.asarray(call).reshape(-1)] = left_s
    return ends[:, :: max(1, len(calls) // _MOST_CALLS)]


def _close(ends: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which two ranks left together: bool[ranks, ranks]."""
    close = np.zeros((len(ends), len(ends)), dtype=np.bool_)
    for place, own in enumerate(ends):
        apart = np.abs(ends - own)
        both = np.maximum((~np.isnan(apart)).sum(axis=1), 1)
        close[place] = (apart <= _TOGETHER_S).sum(axis=1) >= _SHARE * both
    return close
