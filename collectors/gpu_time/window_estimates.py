"""What recording windows tell of all of the time: GPU time of groups of rows, and its intervals.

How windows become estimates: window_estimator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.estimated_time import EstimatedTime

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
    rows             int64[n], which rows grew
    counts, times    float64[n], by how many records and ns
    sound            whether nothing was lost
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
        """Give how many times what was recorded it stands for."""
        return self.span_ns / self.on_ns

    @property
    def surplus(self) -> float:
        """Give how many launches more there were than what was recorded stands for."""
        return self.numbered - self.launches * self.expansion

    @property
    def exact(self) -> bool:
        """Tell whether all that it stands for was recorded."""
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
    """A window that is told, or waits to be: its launches and GPU time by row, float64[rows].

    A correction may take more from a row than its window had: such a part is below 0, so that sums
    have no bias.
    """

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
    spread          None where nothing is known of it
    """

    counts: _Floats
    times: _Floats
    told: Sequence[Waited]
    spread: Spread | None

    @property
    def span_ns(self) -> int:
        """Give the time that is told of."""
        return sum(part.window.span_ns for part in self.told)

    @property
    def launches(self) -> int:
        """Give how many launches it had."""
        return sum(part.window.numbered for part in self.told)

    def rows(self, rows: int) -> NDArray[np.int64]:
        """Give the places of those of all rows of which something is told."""
        ran = np.zeros(rows, np.bool_)
        for part in self.told:
            ran[: len(part.times)] |= part.times != 0
        if self.spread is not None:
            ran |= self.spread.counts.any(axis=0)
        places: NDArray[np.int64] = np.flatnonzero(ran)
        return places

    def launched(self, rows: int) -> _Floats:
        """Give launches by row, of all that is told."""
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
        """Give by group whether its variance is known, and the variance."""
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
