"""What stands for a feature that is missing; the same in models, groups and their training."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.features import FEATURE_NAMES

FILL: Final = 0.0
"""A signal at its baseline."""
LAG_FILL: Final = -4.0
"""One second below any true lag: the signal did not move."""

FILLS: Final = np.array([LAG_FILL if n.startswith("lag.") else FILL for n in FEATURE_NAMES])


def filled(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill what is missing in vectors, [..., FEATURE_NAMES]."""
    return np.where(np.isfinite(vectors), vectors, FILLS)
