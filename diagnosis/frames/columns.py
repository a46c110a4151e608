"""Signals that are the growth of a column: of each second, and of the host in tenths of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import HostTicks

from .frame import FINE_BINS
from .signals import SIGNALS, SignalTable, fine_of

_NS_PER_S: Final = 1e9


class Columns:
    """Which columns of one layout are which signals; a column that is not there has none.

    wanted   (signal, column, column that is taken off first or "", factor) in order
    """

    def __init__(
        self, layout: tuple[str, ...], wanted: Iterable[tuple[str, str, str, float]]
    ) -> None:
        at = {column: index for index, column in enumerate(layout)}
        rows = [row for row in wanted if row[1] in at and (not row[2] or row[2] in at)]
        self.names = tuple(row[0] for row in rows)
        self._plus = np.array([at[row[1]] for row in rows], np.intp)
        pairs = [(place, at[row[2]]) for place, row in enumerate(rows) if row[2]]
        self._less = np.array([place for place, _ in pairs], np.intp)
        self._minus = np.array([column for _, column in pairs], np.intp)
        self._factors = np.array([row[3] for row in rows])

    def grown(self, growth: NDArray[Any]) -> NDArray[np.float64]:
        """Give the signals' growth from growth[..., columns], in the signal's unit times seconds.

        What falls below zero is zero: two columns are read one after the other.
        """
        found = growth[..., self._plus].astype(np.float64)
        if len(self._less):
            found[..., self._less] -= growth[..., self._minus]
        return np.asarray(np.maximum(found, 0.0) * self._factors)

    def rates(self, growth: NDArray[Any], span_ns: int) -> NDArray[np.float64]:
        """Give the same per second."""
        return np.asarray(self.grown(growth) * (_NS_PER_S / span_ns))


_TENTHS: Final = np.arange(FINE_BINS + 1, dtype=np.float64)
_MOST_SNAPSHOTS: Final = 4_096
"""What waits for its frame: 40 s at 100 Hz."""


class FineBins:
    """Keeps snapshots until their frame is made."""

    def __init__(self, table: SignalTable = SIGNALS) -> None:
        self._names = fine_of(table)
        self._wanted = [
            (name, table[name].total, table[name].minus, table[name].per_column)
            for name in self._names
        ]
        self._layout: tuple[str, ...] | None = None
        self._times: list[NDArray[np.int64]] = []
        self._totals: list[NDArray[np.uint64]] = []

    def lack(self, signals: Collection[str]) -> None:
        """Leave these out: a kernel without their hook counts zeros."""
        self._wanted = [row for row in self._wanted if row[0] not in signals]
        self._layout = None

    def add(self, ticks: HostTicks) -> None:
        """Take what was snapped."""
        if ticks.metrics != self._layout:
            self._layout = ticks.metrics
            self._columns = Columns(ticks.metrics, self._wanted)
            self._rows = np.array([self._names.index(n) for n in self._columns.names], np.intp)
            self._times, self._totals = [], []
        self._times.append(ticks.boottime_ns)
        self._totals.append(ticks.totals)

    def take(self, begin_ns: int, end_ns: int) -> NDArray[np.float32]:
        """Give float32[fine signals, FINE_BINS] per second; NaN where no snapshot fell.

        Each tenth of the span reaches from the last snapshot before it to its own last one.
        """
        fine = np.full((len(self._names), FINE_BINS), np.nan, np.float32)
        if not self._times:
            return fine
        times, totals = np.concatenate(self._times), np.concatenate(self._totals)
        edges = begin_ns + _TENTHS * ((end_ns - begin_ns) / FINE_BINS)
        edges[-1] = end_ns
        last = np.searchsorted(times, edges, side="right") - 1
        there = (last[:-1] >= 0) & (last[1:] > last[:-1])
        if there.any():
            first, until = last[:-1][there], last[1:][there]
            growth = totals[until].astype(np.int64) - totals[first].astype(np.int64)
            spans_s = (times[until] - times[first]) / 1e9
            rates = self._columns.grown(growth) / spans_s[:, None]
            fine[self._rows[:, None], np.flatnonzero(there)] = rates.T
        kept = max(int(last[-1]), 0, len(times) - _MOST_SNAPSHOTS)
        self._times, self._totals = [times[kept:]], [totals[kept:]]
        return fine
