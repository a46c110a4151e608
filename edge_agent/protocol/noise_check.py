"""Is what a sampler gave noise at all? A fault withholds the window instead of publishing it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from wire.task import CHECK_WORDS, Task

# A sampler that saturates gives the ends of its type: the value under such a draw shows.
_ENDS: Final = np.array([-(1 << 63), -(1 << 31), (1 << 31) - 1, (1 << 63) - 1], dtype=np.int64)
_NEVER_BITS: Final = 64
"""An event of probability below 2^-64 is a fault, not chance."""


def noise_fault(task: Task, noise: NDArray[np.int64], hosts: int, *, seeded: bool) -> str | None:
    """Say why a batch's noise must not be used, or None.

    noise       of the sampler, for int64[hosts, d]
    seeded      noise that anybody can repeat protects nobody: a test's may be all zero
    """
    # Float noise has a lattice that betrays the value under it: integers or nothing.
    if noise.dtype != np.int64 or noise.shape != (hosts, task.d):
        return "noise of another shape or type"
    if noise[:, :CHECK_WORDS].any():
        return "noise on the check words"
    if np.isin(noise, _ENDS).any():
        return "noise at the end of its type"
    if not seeded and zero_bits(task) >= _NEVER_BITS and not noise.any(axis=1).all():
        return "a host without any noise"
    return None


def zero_bits(task: Task) -> int:
    """Bound from below how improbable a row of zeros is: its probability is at most 2^-bits.

    P(0) of a discrete Gaussian is at most 1 / (2 sigma) for sigma >= 2 steps.
    """
    return sum(
        section.length * (section.sigma_1024 // 1024).bit_length() for section in task.sections
    )
