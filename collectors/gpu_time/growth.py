"""What a process's kernels did between two states of its segment, and how much of it was recorded.

Recording goes in windows at random times. CUPTI numbers all launches of a context, so that of
launches the exact number is known once the next window has met one: what was recorded is scaled by
it. Copies and kernels of graphs have no such numbers; they are scaled by time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from collectors.records.activity import EVERYTHING_MILLIONTHS

from .segment import ROW, RowKind, Snapshot

_NO_ROWS: Final = np.zeros(0, ROW)
_KINDS: Final = frozenset(map(int, RowKind))
NUMBERED: Final = frozenset({RowKind.KERNEL})
"""Rows whose launches CUPTI numbers."""


class Work(NamedTuple):
    """What was recorded of one kernel, or of copies in one direction.

    device   the process's own number of it
    name     as CUPTI has it
    records  how many were recorded
    time_ns  their durations, summed
    bins     (log2 of ns, count)
    rate     share of what happened that was recorded, in millionths, 1 to 1,000,000
    """

    device: int
    kind: RowKind
    name: str
    records: int
    time_ns: int
    bins: tuple[tuple[int, int], ...]
    rate: int


class Rates(NamedTuple):
    """Which share was recorded: of launches by their numbers, of time by the clock; millionths."""

    launches: int
    time: int


def rates(before: Snapshot | None, after: Snapshot) -> Rates:
    """Give the shares recorded between two states; `before` is None at the first."""

    def grown(name: str) -> int:
        return max(0, after.header[name] - (before.header[name] if before else 0))

    span_ns = after.header["written_ns"] - before.header["written_ns"] if before else 0
    by_time = _millionths(grown("on_ns"), span_ns if span_ns > 0 else grown("on_ns"))
    numbered = grown("numbered")
    return Rates(_millionths(grown("launches"), numbered) if numbered else by_time, by_time)


def _millionths(part: int, whole: int) -> int:
    share = round(EVERYTHING_MILLIONTHS * part / whole) if whole > 0 else EVERYTHING_MILLIONTHS
    return min(max(share, 1), EVERYTHING_MILLIONTHS)


def work(before: Snapshot | None, after: Snapshot) -> Iterator[Work]:
    """Yield what came since `before`; rows that no library writes give none."""
    share = rates(before, after)
    old = before.rows if before is not None else _NO_ROWS
    counts = after.rows["count"].astype(np.int64)
    counts[: len(old)] -= old["count"].astype(np.int64)
    for row in np.flatnonzero(counts > 0).tolist():
        then = old[row] if row < len(old) else np.zeros(1, ROW)[0]
        now = after.rows[row]
        time_ns = int(now["total_ns"]) - int(then["total_ns"])
        if time_ns < 0 or int(now["kind"]) not in _KINDS:
            continue
        kind = RowKind(int(now["kind"]))
        bins = now["bins"].astype(np.int64) - then["bins"]
        found = tuple((b, int(bins[b])) for b in np.flatnonzero(bins > 0).tolist())
        rate = share.launches if kind in NUMBERED else share.time
        yield Work(
            int(now["device"]), kind, after.names[row], int(counts[row]), time_ns, found, rate
        )
