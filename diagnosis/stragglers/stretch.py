"""When a slow rank began to be slow and when it ended, to the step; pure.

Windows say that a rank is slow; they are cut blindly, so that a beginning may lie anywhere in the
first of them or in the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .peers import PeerRules, Times


def slow_stretch(
    above: Times, steps: NDArray[np.int64], windows: Sequence[slice], rules: PeerRules
) -> tuple[int, int] | None:
    """Name the first and the last slow step of a rank; None where no window says it is slow.

    From the first such window the beginning is sought back to the run's start, from the last one
    the end forward: where the sum of marks is largest, a slow step counting 1 - p and any other
    -p, with p the persistence that the rules ask for. So the stretch grows while most of what it
    takes in is slow: a burst long before, or a slow step now and then, is no beginning.

    above     float64[steps], excess less the margin; NaN: not seen
    steps     int64[steps], their names
    windows   of positions in steps, in order
    Source    Page 1954 (CUSUM), for the place of a change
    """
    if not windows:
        return None
    marks = np.where(np.isnan(above), 0.0, (above >= 0) - rules.persistence)
    back = np.cumsum(marks[: windows[0].stop][::-1])
    ahead = np.cumsum(marks[windows[-1].start :])
    first = windows[0].stop - 1 - int(np.argmax(back))
    last = windows[-1].start + int(np.argmax(ahead))
    return int(steps[first]), int(steps[last])
