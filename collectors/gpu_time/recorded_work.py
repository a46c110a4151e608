"""What a process's kernels did between two states of its segment, and how much of it was recorded.

Recording goes in windows at random times. CUPTI numbers all launches of a context, so that of
launches the exact number is known once the next window has met one: what was recorded is scaled by
it. Copies and kernels of graphs have no such numbers: a window stands for the time since the one
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from collectors.records.activity import EVERYTHING_MILLIONTHS

from .segment import ROW, RowKind, Snapshot

_KINDS: Final = frozenset(map(int, RowKind))
NUMBERED: Final = frozenset({RowKind.KERNEL})
"""Rows whose launches CUPTI numbers."""
_MOST_RECORDS: Final = 1 << 40
_MOST_NS: Final = 1 << 50
"""Growth of a row between two looks that no GPU reaches: 13 days."""
_FINE: Final = EVERYTHING_MILLIONTHS // 100
"""Shares from this on are rounded by less than 0.01 %."""


class Work(NamedTuple):
    """What was recorded of one kernel, or of copies in one direction.

    device   the process's own number of it
    name     as CUPTI has it
    records  how many were recorded, times `weight`
    time_ns  their durations, summed, times `weight`
    bins     (log2 of ns, count), times `weight`
    rate     share of what happened that was recorded, times `weight`, in millionths, 1 to 1,000,000
    weight   1, or a power of ten where too little was recorded to be told in millionths
    """

    device: int
    kind: RowKind
    name: str
    records: int
    time_ns: int
    bins: tuple[tuple[int, int], ...]
    rate: int
    weight: int


class RecordedShare(NamedTuple):
    """How much was recorded: `part` of `whole`, 1 <= part <= whole."""

    part: int
    whole: int

    def rate(self) -> tuple[int, int]:
        """Give it in millionths, times the weight that makes them fine enough, and this weight."""
        weight = 1
        while EVERYTHING_MILLIONTHS * self.part * weight < _FINE * self.whole:
            weight *= 10
        return round(EVERYTHING_MILLIONTHS * self.part * weight / self.whole), weight


EVERYTHING: Final = RecordedShare(1, 1)


@dataclass(slots=True)
class Growth:
    """Follows one process.

    before    its newest known state: what is there already was told to somebody else
    since_ns  until when its time is accounted for, CLOCK_BOOTTIME
    """

    before: Snapshot
    since_ns: int
    launches: RecordedShare = EVERYTHING
    time: RecordedShare = EVERYTHING

    def follow(self, after: Snapshot) -> Iterator[Work]:
        """Yield what came since the last state; rows that no library writes give none."""
        before, self.before = self.before, after
        self._shares(before, after)
        known = before.rows[: len(after.rows)]
        then = np.zeros(len(after.rows), ROW)
        then[: len(known)] = known
        grown = after.rows["count"] - then["count"]
        for row in np.flatnonzero((grown > 0) & (grown <= _MOST_RECORDS)).tolist():
            found = self._work(after.rows[row], then[row], after.names[row])
            if found is not None:
                yield found

    def _shares(self, before: Snapshot, after: Snapshot) -> None:
        """Learn which share was recorded; records that come behind a window have that window's."""
        on_ns, launches, numbered = (
            after.header[name] - before.header[name] for name in ("on_ns", "launches", "numbered")
        )
        if on_ns > 0:
            self.time = _share(on_ns, after.header["written_ns"] - self.since_ns)
            self.since_ns = after.header["written_ns"]
        if numbered > 0:
            self.launches = _share(launches, numbered)
        elif launches <= 0:
            self.launches = self.time

    def _work(self, now: np.void, then: np.void, name: str) -> Work | None:
        records = int(now["count"]) - int(then["count"])
        time_ns = int(now["total_ns"]) - int(then["total_ns"])
        if not 0 <= time_ns <= _MOST_NS or int(now["kind"]) not in _KINDS:
            return None
        kind = RowKind(int(now["kind"]))
        rate, weight = (self.launches if kind in NUMBERED else self.time).rate()
        bins = now["bins"] - then["bins"]  # of 32 bits, which go round
        found = [(b, int(bins[b])) for b in np.flatnonzero(bins).tolist()]
        return Work(
            int(now["device"]), kind, name, records * weight, time_ns * weight,
            tuple((b, count * weight) for b, count in found if count <= records), rate, weight,
        )  # fmt: skip


def _share(part: int, whole: int) -> RecordedShare:
    return RecordedShare(min(max(part, 1), whole), whole) if whole > 0 else EVERYTHING
