"""Early warning from the steps themselves: the slow ones climb towards the length of a spike."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import log2
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .settings import DetectionSettings
from .trend import STILL_CLIMBING, trend

_UNKNOWN: Final = float("nan")
_FEWEST_STEPS: Final = 10
"""In a second: fewer have no 90th percentile."""
_SPAN_FRAMES: Final = 3
"""The newest ones are compared with those before, so that one jump is no climb."""
_MOST_GAPS: Final = 1.3
"""Times as long as it should be a window may be: longer, seconds are missing in it."""


@dataclass(frozen=True, slots=True)
class _Second:
    at_s: float
    risen_octaves: float


class StepClimb:
    """The 90th percentile of one subject's steps, second by second, beside the usual one.

    It moves before the 99th does: what slows every step a little slows none enough for a spike.
    """

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._seconds: deque[_Second] = deque(maxlen=settings.early_window_s)

    def take(self, duration_ns: NDArray[np.int64], usual_ns: float, at_s: float) -> None:
        """Add one frame's steps: int64[n]; `usual_ns` is their usual 90th percentile, or NaN."""
        if duration_ns.size < _FEWEST_STEPS or not usual_ns > 0:
            self._seconds.append(_Second(at_s, _UNKNOWN))
            return
        self._seconds.append(_Second(at_s, log2(np.quantile(duration_ns, 0.9) / usual_ns)))

    def forget(self) -> None:
        """Begin anew: a spike, or another phase."""
        self._seconds.clear()

    def expected_in_s(self) -> float | None:
        """Give the seconds until the percentile is 1.3 times the usual one; None: no climb."""
        settings = self._settings
        if len(self._seconds) < settings.early_window_s:
            return None
        seconds = np.array([one.at_s for one in self._seconds])
        risen = np.array([one.risen_octaves for one in self._seconds])
        gaps = seconds[-1] - seconds[0] > _MOST_GAPS * settings.early_window_s
        if (
            gaps
            or np.isnan(risen).any()
            or risen[-2 * _SPAN_FRAMES :].min() < settings.early_step_octaves
        ):
            return None
        slope, sureness, now = (float(x[0]) for x in trend(seconds, risen[:, None]))
        grown = _grown(risen) / _grown(seconds)
        if slope <= 0 or grown < STILL_CLIMBING * slope or sureness < settings.early_sureness:
            return None
        left_s = (log2(settings.tail_ratio) - now) / slope
        return left_s if 0 < left_s <= settings.early_horizon_s else None


def _grown(values: NDArray[np.float64]) -> float:
    """Mean of the newest frames less that of those before."""
    newest, before = values[-_SPAN_FRAMES:], values[-2 * _SPAN_FRAMES : -_SPAN_FRAMES]
    return float(newest.mean() - before.mean())
