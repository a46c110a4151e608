"""What is usual: of signals by median and spread, of step times by their distribution."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

NORMAL: Final = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""
_PER_OCTAVE: Final = 32
_FIRST_OCTAVE: Final = 10  # 1 us
_OCTAVES: Final = 28  # to 275 s
_BINS: Final = _PER_OCTAVE * _OCTAVES


class SignalBaseline:
    """Medians and spreads of many signals over the last seconds that were usual.

    floors     float64[signals]: the least spread of each that counts, in its unit
    relative   float64[signals]: the same as a share of the median
    """

    def __init__(
        self, floors: NDArray[np.float64], length: int, relative: NDArray[np.float64]
    ) -> None:
        self._floors = floors
        self._relative = relative
        self._ring = np.full((length, floors.size), np.nan)
        self.seconds = 0
        self.median = np.full(floors.size, np.nan)
        self.spread = np.full(floors.size, np.nan)

    def add(self, values: NDArray[np.float64]) -> None:
        """Take one usual second: float64[signals], NaN where not measured."""
        self._ring[self.seconds % self._ring.shape[0]] = values
        self.seconds += 1

    def refresh(self) -> None:
        """Compute `median` and `spread` anew; NaN where a signal was never measured."""
        rows = self._ring[: min(self.seconds, self._ring.shape[0])]
        if rows.shape[0] == 0:
            return
        self.median = _median(rows)
        strayed = NORMAL * _median(np.abs(rows - self.median))
        least = np.maximum(self._floors, self._relative * np.abs(self.median))
        self.spread = np.maximum(strayed, least)

    def deviation(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Distances from the medians in spreads, float64[signals]; NaN where unknown."""
        return np.asarray((values - self.median) / self.spread)


def _median(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of each column without its NaN: a tenth of what numpy.nanmedian takes."""
    ordered = np.sort(rows, axis=0)  # NaN last
    known = np.count_nonzero(rows == rows, axis=0)  # noqa: PLR0124
    last = np.maximum(known - 1, 0)
    columns = np.arange(rows.shape[1])
    return np.asarray(0.5 * (ordered[last // 2, columns] + ordered[(last + 1) // 2, columns]))


class StepBaseline:
    """Distribution of step times in bins of a 32nd of an octave; older steps fade.

    fade_s   after how many usual seconds a step counts 1/e, but never fewer than `least_steps`
             steps are kept in mind
    """

    def __init__(self, fade_s: float, least_steps: float) -> None:
        self._fade_s = fade_s
        self._least_steps = least_steps
        self._counts = np.zeros(_BINS)
        self._sums: NDArray[np.float64] = np.zeros(_BINS)
        self.steps = 0.0
        self._span_s = 0.0

    def add(self, counts: NDArray[np.int64], span_s: float) -> None:
        """Take the steps of a usual stretch of time, binned by `step_bins`."""
        if self.steps > self._least_steps:
            kept = max(math.exp(-span_s / self._fade_s), self._least_steps / self.steps)
            self._counts *= kept
            self._span_s *= kept
        self._span_s += span_s
        self._counts += counts
        self._sums = np.cumsum(self._counts)
        self.steps = float(self._sums[-1])

    @property
    def rate_per_s(self) -> float:
        """Usual steps a second."""
        return self.steps / self._span_s if self._span_s > 0 else 0.0

    def quantile_ns(self, share: float) -> float:
        """Step time below which `share` of the steps lie; NaN without steps."""
        if self.steps <= 0:
            return float("nan")
        place = int(self._sums.searchsorted(share * self.steps))
        return float(2.0 ** (_FIRST_OCTAVE + (min(place, _BINS - 1) + 0.5) / _PER_OCTAVE))

    def above(self, duration_ns: float) -> float:
        """How many of the steps kept in mind took longer."""
        place = int((math.log2(max(duration_ns, 1.0)) - _FIRST_OCTAVE) * _PER_OCTAVE)
        return self.steps - float(self._sums[min(max(place, 0), _BINS - 1)])


def step_bins(duration_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count steps by the bins of `StepBaseline`."""
    places = ((np.log2(np.maximum(duration_ns, 1)) - _FIRST_OCTAVE) * _PER_OCTAVE).astype(np.int64)
    return np.bincount(np.minimum(np.maximum(places, 0), _BINS - 1), minlength=_BINS)
