"""Records on their way to the live view and the history, turned into rows once in a while.

What runs once a second runs from cold caches: ten seconds of records together cost a third of
what they do one second at a time. Whoever looks has them taken in first. The file of
the history is written as seldom: a transaction costs as much as a hundred rows, and snapshots of
ten seconds compress as one pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from collectors.records.activity import Record
from diagnosis.detect.findings import Finding

from .history import History
from .history_tables import MOST_CELLS, MOST_SNAPSHOTS
from .local_rows import NOT_SHOWN, Flattener, PackedRow, Row
from .recent import Recent

MOST_ROWS: Final = 20_000

EVERY_MS: Final = 10_000
"""What a killed agent loses of its raw history; one that stops in order loses nothing."""
FIRST_MS: Final = 2_000
"""Whoever has just started an agent looks whether it keeps anything."""
MOST_RECORDS: Final = 10_000


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


class Gathering:
    """Keeps what sources handed out until it is due, or asked for.

    batch   into the history; None: there is none
    """

    def __init__(self, flattener: Flattener, recent: Recent, batch: HistoryBatch | None) -> None:
        self._flattener, self._recent, self._batch = flattener, recent, batch
        self._waiting: list[tuple[str, Sequence[Record | Finding], Sequence[Row]]] = []
        self._records = 0
        self._due_ms = 0
        self._begun = False

    def add(
        self, source: str, records: Sequence[Record | Finding], rows: Sequence[Row] = ()
    ) -> None:
        """Take what a source handed out, and rows that come after it."""
        shown = [record for record in records if type(record) not in NOT_SHOWN]
        if not shown and not rows:
            return
        self._waiting.append((source, shown, rows))
        self._records += len(shown) + len(rows)
        if self._records > MOST_RECORDS:
            self.fold()

    def withdraw(self, places: Iterable[tuple[str, str, str]]) -> None:
        """Have the live view forget values that no longer hold."""
        gone = list(places)
        if gone:
            self.fold()
            self._recent.withdraw(gone)

    def step(self, now_ms: int) -> None:
        """Write what is due; a clock that was set back does not keep it waiting."""
        if now_ms >= self._due_ms or self._due_ms - now_ms > EVERY_MS:
            self._due_ms = now_ms + (EVERY_MS if self._begun else FIRST_MS)
            self._begun = True
            self.flush()

    def fold(self) -> None:
        """Bring the live view up to date."""
        waiting, self._waiting, self._records = self._waiting, [], 0
        for source, records, more in waiting:
            rows = [*self._flattener.rows(source, records), *more]
            self._recent.add(rows)
            if self._batch is not None:
                self._batch.add(rows)

    def flush(self) -> None:
        """Write everything, in one transaction."""
        self.fold()
        if self._batch is not None:
            self._batch.flush()
