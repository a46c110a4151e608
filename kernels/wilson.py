"""Binomial intervals for small counts."""

from __future__ import annotations

from math import sqrt
from typing import Final

_Z95: Final = 1.959964


def wilson_interval(hits: int, trials: int, z: float = _Z95) -> tuple[float, float]:
    """Return the score interval of a proportion, 95 % unless z says otherwise.

    hits, trials    0 <= hits <= trials; without trials the interval is [0, 1]
    Source          E. B. Wilson 1927
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"expected 0 <= hits <= trials, got {hits} of {trials}")
    if trials == 0:
        return 0.0, 1.0
    share, spread = hits / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
