"""GPU calls in the local history: one row per kernel and process for each ten seconds.

The busiest 50 kernels and 64 processes of the host are kept: at most 180 rows in ten seconds, with
the rest of each process's kernels as one. That is up to 30 kB, of which a day fits in the history's
bytes beside everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any, Final

from collectors.records.gpu_calls import CountedCalls, GpuCalls, KernelCalls, ProcessCalls

from .history_tables import bounded
from .local_rows import CallsRow, GovernorRow, Row, clean_name
from .merged_calls import keep_busiest, merge

KEPT_KERNELS: Final = 50
KEPT_PROCESSES: Final = 64
KEPT_DETAILS: Final = 16
"""Collectives and errors of one process in one row: the largest."""
SPAN_NS: Final = 10_000_000_000
_MOST_WAITING: Final = 64


class CallSpans:
    """Adds up records until ten seconds of a source are together."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[GpuCalls]] = {}
        self.dropped: Counter[str] = Counter()

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows on; of GPU calls those that are complete, of the governor none."""
        for row in rows:
            if isinstance(row, CallsRow):
                yield from self._add(row)
            elif not isinstance(row, GovernorRow):
                yield row

    def rest(self) -> Iterator[CallsRow]:
        """Give what has waited, however short."""
        for source in list(self._waiting):
            yield self._take(source)

    def _add(self, row: CallsRow) -> Iterator[CallsRow]:
        waiting = self._waiting.setdefault(row.source, [])
        waiting.append(row.calls)
        spent_ns = sum(calls.span_ns for calls in waiting)
        if spent_ns >= SPAN_NS or len(waiting) >= _MOST_WAITING:
            yield self._take(row.source)

    def _take(self, source: str) -> CallsRow:
        kept, left_out = keep_busiest(
            merge(self._waiting.pop(source)), KEPT_KERNELS, KEPT_PROCESSES
        )
        self.dropped["gpu_processes"] += left_out
        return CallsRow(source, kept)


def kernel_values(row: KernelCalls, process: str, span_ns: int) -> tuple[Any, ...]:
    """Give the values of the table's columns."""
    values = (
        *row.process, process, row.family, span_ns, *_counted(row.launches), row.blocks,
        row.threads,
    )  # fmt: skip
    return tuple(map(bounded, values))


def process_values(row: ProcessCalls, span_ns: int) -> tuple[Any, ...]:
    """Give the values of the table's columns; of its lists the largest members."""
    places = row.identity[1:]
    memory = row.memory if row.memory is not None else (None,) * 6
    copies = [(c.direction.value, *_counted(c.copies), c.bytes, c.log2_bins) for c in row.copies]
    collectives = [
        (f"{c.communicator:#x}", c.call, *_counted(c.calls), c.bytes, c.duration_ns)
        for c in sorted(row.collectives, key=lambda one: -one.bytes)[:KEPT_DETAILS]
    ]
    errors = sorted(row.errors, key=lambda one: -one.failures)[:KEPT_DETAILS]
    values = (
        *row.process, *(clean_name(place) for place in places), span_ns, *_counted(row.launches),
        row.waits.wait_ns, row.wait_share(span_ns), *memory, copies, collectives, errors,
    )  # fmt: skip
    return tuple(map(bounded, values))


def _counted(counted: CountedCalls) -> tuple[int, float, float | None, float]:
    """Give the four numbers; a variance without bound is None."""
    variance = counted.variance if isfinite(counted.variance) else None
    return counted.seen, counted.value, variance, counted.share
