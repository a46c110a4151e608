"""Rows on their way into the history, gathered so that the file is written once in a while.

A transaction costs as much as a hundred rows, and snapshots of ten seconds compress as one pack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from .history import History
from .local_rows import PackedRow, Row
from .packing import MOST_CELLS, MOST_SNAPSHOTS

MOST_ROWS: Final = 20_000


class HistoryBatch:
    """Gathers rows until they are to be written."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rows: list[Row] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows; a burst is written at once."""
        self._rows.extend(rows)
        if len(self._rows) >= MOST_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write everything, in one transaction."""
        rows, self._rows = self._rows, []
        self._history.add(joined(rows))


def joined(rows: Iterable[Row]) -> list[Row]:
    """Join packs: a source's running totals in time, its tables of one moment side by side."""
    kept: list[Row] = []
    series: dict[tuple[object, ...], list[PackedRow]] = {}
    moments: dict[tuple[object, ...], list[PackedRow]] = {}
    for row in rows:
        if not isinstance(row, PackedRow):
            kept.append(row)
        elif not row.span_ns:
            series.setdefault((row.source, row.cells), []).append(row)
        elif len(row.boottime_ns) == 1:
            place = (row.source, int(row.boottime_ns[0]), row.span_ns)
            moments.setdefault(place, []).append(row)
        else:
            kept.append(row)
    for packs in series.values():
        kept.extend(_in_time(packs))
    for packs in moments.values():
        kept.extend(_side_by_side(packs))
    return kept


def _side_by_side(packs: list[PackedRow]) -> Iterable[PackedRow]:
    if sum(len(pack.cells) for pack in packs) > MOST_CELLS:
        return packs
    first = packs[0]
    cells = tuple(cell for pack in packs for cell in pack.cells)
    values = np.concatenate([pack.values for pack in packs], axis=1)
    return [PackedRow(first.source, cells, first.boottime_ns, values, first.span_ns)]


def _in_time(packs: list[PackedRow]) -> Iterable[PackedRow]:
    if sum(len(pack.boottime_ns) for pack in packs) > MOST_SNAPSHOTS:
        return packs
    first = packs[0]
    times = np.concatenate([pack.boottime_ns for pack in packs])
    values = np.concatenate([pack.values for pack in packs])
    return [PackedRow(first.source, first.cells, times, values)]
