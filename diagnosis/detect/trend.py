"""A line through the last seconds of many signals."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

STILL_CLIMBING: Final = 0.6
"""Slope of the newer part over the whole one's: a step that was made once is no climb."""


def trend(
    seconds: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Fit a line to each column of float64[seconds, n].

    Returns     slope a second, slope over its standard error, value at the end: float64[n] each
    """
    t = seconds - seconds.mean()
    middle = rows.mean(axis=0)
    squares = float((t * t).sum())
    slope = (t @ (rows - middle)) / squares
    left = rows - middle - t[:, None] * slope
    error = np.sqrt((left * left).sum(axis=0) / max(len(t) - 2, 1) / squares)
    sureness = slope / np.maximum(error, 1e-12)
    return slope, sureness, middle + t[-1] * slope
