"""From windows to all of the time: launches and GPU time of each row, and how far they may be off.

A window stands for the time since the one before: what it recorded is scaled by the share of time
that was recorded. For launches the exact number of all is known besides. Where a window met more
or fewer of them than its share, kernels are corrected by how they went with launches in the windows
before: the regression estimator, without bias, because its slopes come from other windows. A ratio
to the launches of the same window would be biased, manifold for what runs while little is launched.
Launches by kernel are always corrected, so that they are as many as there were.

A window that met no launch says nothing of how many there were: it waits for one that did.

Source  Cochran, Sampling Techniques, 3rd edition, chapters 2 and 7
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .window_estimates import LEAST_WINDOWS, Spread, Waited, Window, WindowEstimates

MOST_WINDOWS: Final = 32
"""From which slopes and variances are learnt: two and a half minutes at the default budget."""
_TO_RATIO: Final = 0.1
_TO_ZERO: Final = 0.01
"""Weights, in windows, with which slopes are drawn to the plain ratio (of launches) and to none (of
time): where all windows had the same rate of launches there is no slope to be learnt."""
_FARTHEST: Final = 1.0
"""Square of how far a window's rate of launches may lie from what it met, over all the squares of
how the windows before differed: beyond, slopes say nothing."""
_NEAR: Final = 2.0
"""How many times as many launches, or as few, may have been those that the window met."""
_MOST_WAITING: Final = 16
"""Windows without a launch, after which they are told all the same."""

_Floats = NDArray[np.float64]


@dataclass(slots=True)
class WindowEstimator:
    """Follows the windows of one process."""

    _past: deque[Window] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    _waiting: list[Waited] = field(default_factory=list)
    _owed_counts: _Floats = field(default_factory=lambda: np.zeros(0))
    _owed_times: _Floats = field(default_factory=lambda: np.zeros(0))

    def estimate(
        self, window: Window, kernels: NDArray[np.bool_], *, last: bool = False
    ) -> WindowEstimates:
        """Estimate what a window stands for.

        kernels  bool[rows], rows whose launches are numbered; rows only ever grow
        last     none comes after it
        """
        rows = len(kernels)
        counts, times = (_dense(window, of, rows) for of in (window.counts, window.times))
        if window.exact and not self._waiting:
            return WindowEstimates(counts, times, (Waited(window, counts, times),), None)
        slopes = _Slopes.of(_Table.of(self._past, rows), kernels)
        counts = _launched(window, counts, kernels, slopes)
        times = _worked(window, times, kernels, slopes)
        self._waiting.append(Waited(window, counts, times))
        spread = self._spread(window, slopes, len(kernels))
        given = self._given(window, counts, times, kernels)
        return WindowEstimates(*given, self._told(window, last), spread)

    def _spread(self, window: Window, slopes: _Slopes | None, rows: int) -> Spread | None:
        if window.sound and window.on_ns < window.span_ns:
            self._past.append(window)
        if len(self._past) < LEAST_WINDOWS:
            return None
        table = _Table.of(self._past, rows)
        if slopes is None or not slopes.learnt:
            return Spread(table.times, table.times, table.counts, 0.0)
        residuals = table.times - table.launches[:, None] * slopes.times
        return Spread(residuals, table.times, table.counts, slopes.leverage(window))

    def _given(
        self, window: Window, counts: _Floats, times: _Floats, kernels: NDArray[np.bool_]
    ) -> tuple[_Floats, _Floats]:
        """Give what is told for good, rows of less than half a record left out.

        What a row is owed, or has had too much, comes with its next: its sums have no bias, and
        launches are as many as were numbered.
        """
        wanted = _added(counts, self._owed_counts)
        record = window.numbered / window.launches if window.launches else window.expansion
        told = wanted > np.where(kernels, record, window.expansion) / 2
        positive, whole = np.where(told, wanted, 0.0), max(float(wanted.sum()), 0.0)
        given = positive * (whole / max(float(positive.sum()), 1e-30))
        self._owed_counts = wanted - given
        wanted = _added(times, self._owed_times)
        told_times = np.where(told, np.maximum(wanted, 0.0), 0.0)
        self._owed_times = wanted - told_times
        return given, told_times

    def _told(self, window: Window, last: bool) -> Sequence[Waited]:
        awaited = any(past.launches for past in self._past) and not window.launches
        if awaited and not last and len(self._waiting) < _MOST_WAITING:
            return ()
        told, self._waiting = self._waiting, []
        return told


class _Table(NamedTuple):
    """Windows of before, by ns of recorded time.

    launches        float64[windows]
    counts, times   float64[windows, rows]
    """

    launches: _Floats
    counts: _Floats
    times: _Floats

    @classmethod
    def of(cls, past: Collection[Window], rows: int) -> _Table:
        counts, times = np.zeros((len(past), rows)), np.zeros((len(past), rows))
        for at, window in enumerate(past):
            counts[at, window.rows] = window.counts / window.on_ns
            times[at, window.rows] = window.times / window.on_ns
        return cls(np.array([one.launches / one.on_ns for one in past]), counts, times)

    def slopes(self, of: _Floats, towards: float, to: _Floats | float) -> _Floats:
        """Give by row how much of it came with a launch; some window has launches.

        towards, to   with which weight, in windows, the slopes are drawn to what
        """
        mean = float(self.launches.mean())
        away = self.launches - mean
        weight = towards * mean**2
        found: _Floats = (away @ of + weight * to) / (away @ away + weight)
        return found


class _Slopes(NamedTuple):
    """Records and ns by launch, float64[rows]; 0 for rows whose launches have no number.

    squares   of the differences of the windows' rates of launches, summed
    learnt    whether there were windows enough to learn those of time
    """

    counts: _Floats
    times: _Floats
    squares: float
    learnt: bool

    @classmethod
    def of(cls, table: _Table, kernels: NDArray[np.bool_]) -> _Slopes | None:
        """Learn them; None where no window has met a launch."""
        if not table.launches.any():
            return None
        ratio = table.counts.mean(axis=0) / table.launches.mean()
        counts = table.slopes(table.counts, _TO_RATIO, ratio) * kernels
        learnt = len(table.launches) >= LEAST_WINDOWS
        times = table.slopes(table.times, _TO_ZERO, 0.0) * kernels * learnt
        squares = float(((table.launches - table.launches.mean()) ** 2).sum())
        weight = _TO_ZERO * float(table.launches.mean()) ** 2
        return cls(counts, times, squares + weight, learnt)

    def leverage(self, window: Window) -> float:
        """Give how much of a residual's square the slopes' own error adds."""
        if not window.launches:
            return 0.0
        leverage = window.surplus**2 / self.squares
        return leverage if leverage <= _FARTHEST * window.span_ns**2 else inf


def _launched(
    window: Window, grown: _Floats, kernels: NDArray[np.bool_], slopes: _Slopes | None
) -> _Floats:
    """Give launches by row, as many as were numbered; at first all are as those recorded."""
    scaled = grown * window.expansion
    if not window.launches:
        return scaled
    if slopes is None:
        return np.where(kernels, grown * (window.numbered / window.launches), scaled)
    return scaled + slopes.counts * window.surplus


def _worked(
    window: Window, grown: _Floats, kernels: NDArray[np.bool_], slopes: _Slopes | None
) -> _Floats:
    """Give GPU time by row; until there are slopes, launches correct it where they say little."""
    scaled = grown * window.expansion
    if not window.launches:
        return scaled
    if slopes is not None and slopes.learnt:
        return scaled + slopes.times * window.surplus
    ratio = window.numbered / window.launches
    near = 1 / _NEAR <= ratio / window.expansion <= _NEAR
    return np.where(kernels & near, grown * ratio, scaled)


def _dense(window: Window, values: _Floats, rows: int) -> _Floats:
    """Spread values of the rows that grew over all rows."""
    found = np.zeros(rows)
    found[window.rows] = values
    return found


def _added(values: _Floats, owed: _Floats) -> _Floats:
    found = values.copy()
    found[: len(owed)] += owed
    return found
