"""From recording windows to all of the time: launches and GPU time by row, intervals, the budget.

A window stands for the time since the one before, scaled by the share that was recorded. Where it
met more or fewer launches than its share, kernels are corrected by how they went with launches in
the windows before: the regression estimator, without bias, because its slopes come from other
windows. A window that met no launch waits for one that did.

Source  Cochran, Sampling Techniques, 3rd edition, chapters 2 and 7
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.gpu_time import EstimatedTime

from .listener import WindowPlan
from .segment import Snapshot

LEAST_WINDOWS: Final = 6
"""With work of a group: fewer say nothing of how windows differ."""
_EDGES: Final = 1 / 6
"""Variance of the number of evenly spaced launches between two random instants."""

_Floats = NDArray[np.float64]


class Window(NamedTuple):
    """What one window recorded, and what it stands for.

    on_ns, span_ns   recorded, of the time since the end of the window before; 1 <= on <= span
    launches         recorded with a number
    numbered         made, from the last one that was met before to the last one of this window
    counts, times    float64[n], by how many records and ns
    """

    on_ns: int
    span_ns: int
    launches: int
    numbered: int
    rows: NDArray[np.int64]
    counts: _Floats
    times: _Floats
    sound: bool = True

    @property
    def expansion(self) -> float:
        return self.span_ns / self.on_ns

    @property
    def surplus(self) -> float:
        return self.numbered - self.launches * self.expansion

    @property
    def exact(self) -> bool:
        return self.on_ns >= self.span_ns and self.numbered <= self.launches

    @property
    def unseen(self) -> float:
        """Give the square of its time that a variance is to be taken times.

        Windows of a program that repeats itself differ by what their edges cut off, however long
        they are: so 1 - f^2 is left of the variance, not 1 - f.
        """
        span, on = float(self.span_ns), float(self.on_ns)
        return min(span**2 - span * on + on**2, span**2 - on**2)


class Waited(NamedTuple):
    """A window told or waiting, float64[rows]; parts may be below 0: sums have no bias."""

    window: Window
    counts: _Floats
    times: _Floats


@dataclass(frozen=True, slots=True)
class Spread:
    """What windows of late differed by, all by ns of recorded time.

    residuals   float64[windows, rows], GPU time less what launches explain
    times       float64[windows, rows]
    counts      float64[windows, rows], records
    leverage    how much of a residual's square an error of the slopes adds, ns^2; infinite where
                the window's launches are far from what the slopes were learnt from
    """

    residuals: _Floats
    times: _Floats
    counts: _Floats
    leverage: float


@dataclass(frozen=True, slots=True)
class WindowEstimates:
    """What windows tell of their span.

    counts, times   float64[rows] of the newest window, >= 0: what a sum over windows is made of
    told            the windows that are told now: none while launches are awaited
    """

    counts: _Floats
    times: _Floats
    told: Sequence[Waited]
    spread: Spread | None

    @property
    def span_ns(self) -> int:
        return sum(part.window.span_ns for part in self.told)

    @property
    def launches(self) -> int:
        return sum(part.window.numbered for part in self.told)

    def rows(self, rows: int) -> NDArray[np.int64]:
        ran = np.zeros(rows, np.bool_)
        for part in self.told:
            ran[: len(part.times)] |= part.times != 0
        if self.spread is not None:
            ran |= self.spread.counts.any(axis=0)
        places: NDArray[np.int64] = np.flatnonzero(ran)
        return places

    def launched(self, rows: int) -> _Floats:
        found = np.zeros(rows)
        for part in self.told:
            found[: len(part.counts)] += part.counts
        return found

    def by(self, labels: NDArray[np.int64], groups: int) -> list[EstimatedTime]:
        """Add up rows by label, 0 to groups - 1, one label for each row."""
        values = np.zeros(groups)
        for part in self.told:
            values += np.bincount(labels[: len(part.times)], part.times, groups)
        known, variances = self._variances(labels, groups)
        windows = len(self.spread.counts) if self.spread is not None else 0
        return [
            EstimatedTime(value, variance if good else None, windows if good else 0, self.span_ns)
            for value, variance, good in zip(
                values.tolist(), variances.tolist(), known.tolist(), strict=True
            )
        ]

    def _variances(
        self, labels: NDArray[np.int64], groups: int
    ) -> tuple[NDArray[np.bool_], _Floats]:
        unseen = sum(part.window.unseen for part in self.told)
        sound = all(part.window.sound for part in self.told)
        if not unseen or self.spread is None or isinf(self.spread.leverage):
            exact = sound and all(part.window.exact for part in self.told)
            return np.full(groups, exact), np.zeros(groups)
        residuals, times, counts = (
            np.array([np.bincount(labels, of, groups) for of in windows])
            for windows in (self.spread.residuals, self.spread.times, self.spread.counts)
        )
        steps = (np.diff(residuals, axis=0) ** 2).mean(axis=0) / 2
        launch = times.sum(axis=0) / np.maximum(counts.sum(axis=0), 1e-30)
        edges = sum((part.window.expansion - 1) ** 2 for part in self.told)
        known = (counts > 0).sum(axis=0) >= LEAST_WINDOWS
        unseen += self.spread.leverage
        return known & sound, unseen * steps + _EDGES * edges * launch**2


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


@dataclass(slots=True)
class WindowEstimator:
    _past: deque[Window] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    _waiting: list[Waited] = field(default_factory=list)
    _owed_counts: _Floats = field(default_factory=lambda: np.zeros(0))
    _owed_times: _Floats = field(default_factory=lambda: np.zeros(0))

    def estimate(
        self, window: Window, kernels: NDArray[np.bool_], *, last: bool = False
    ) -> WindowEstimates:
        """Estimate what a window stands for; `kernels`: bool[rows], whose launches are numbered."""
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
        """Give what is told for good, without rows of less than half a record: they are owed."""
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
    """Windows of before, by ns of recorded time: float64[windows], and twice [windows, rows]."""

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
        """Give how much of each row came with a launch, drawn `towards` (in windows) to `to`."""
        mean = float(self.launches.mean())
        away = self.launches - mean
        weight = towards * mean**2
        found: _Floats = (away @ of + weight * to) / (away @ away + weight)
        return found


class _Slopes(NamedTuple):
    """Records and ns by launch, float64[rows]; 0 for rows whose launches have no number."""

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
    found = np.zeros(rows)
    found[window.rows] = values
    return found


def _added(values: _Floats, owed: _Floats) -> _Floats:
    found = values.copy()
    found[: len(owed)] += owed
    return found


RECORD_NS: Final = 1_200
"""What a record costs the process. Measured on an H100 with CUDA 13.0: 0.9 to 1.15 us a launch, 0.6
us a kernel of a graph."""
WINDOW_MS: Final = 15
"""What a window costs beside its records: 7 ms to attach, 2 ms to leave, and 30 ms in which nothing
more came, at a quarter of their time. Measured on the same machine."""
FIRST: Final = WindowPlan(20, 1_000, 5_000)
LEAST_ON_MS: Final = 10
_MOST_PERIOD_MS: Final = 60_000
LEAST_SHARE: Final = 1.5 * WINDOW_MS / _MOST_PERIOD_MS
"""Below, one window in the longest period costs more."""
_MEMORY: Final = 0.9
"""How much of the busiest rate seen is kept from one look to the next. A window that a burst ends
early misses the rest of it: where quiet times were soon forgotten, work in bursts was told 6 % too
small, by this 1 %."""


@dataclass(slots=True)
class Budget:
    """Follows one process; `share` of its time may be spent on recording, from LEAST_SHARE on."""

    share: float
    busiest: float = 0.0
    """Records a second while recording: the highest of late."""
    _before: tuple[int, int] = (0, 0)

    def follow(self, snapshot: Snapshot) -> WindowPlan:
        """Look at its newest state and say what to ask of it."""
        now = snapshot.header["records"], snapshot.header["on_ns"]
        records, on_ns = now[0] - self._before[0], now[1] - self._before[1]
        if on_ns > 0:
            self.busiest = max(1e9 * records / on_ns, _MEMORY * self.busiest)
            self._before = now
        return self.plan()

    def plan(self) -> WindowPlan:
        """Give the longest windows that the budget allows; a burst ends one early."""
        if not self._before[1]:
            return FIRST
        period_ms = min(max(round(1.5 * WINDOW_MS / self.share), 1_000), _MOST_PERIOD_MS)
        cost = self.busiest * RECORD_NS / 1e9
        if cost <= self.share / 5:
            on_ms = period_ms
        else:
            on_ms = max(LEAST_ON_MS, min(round(0.5 * WINDOW_MS / cost), period_ms // 2))
        most = max(1, int((self.share * period_ms - WINDOW_MS) * 1e6 / RECORD_NS))
        return WindowPlan(on_ms, period_ms, most)
