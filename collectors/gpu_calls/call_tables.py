"""Sums over the drains of one local record, and which share of the calls they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collectors.records.gpu_calls import Direction, FileGroup, MemoryState, ProbeGroup
from collectors.records.process import ProcessKey

from .activity_records import Named
from .counts import MemoryRow, ProbeDrain
from .periods import Collected

Names = Mapping[tuple[ProcessKey, int], Named]
What = tuple[str | int, ...]


class Key(NamedTuple):
    """Calls of one kind; `file` because each file is attached for a time of its own."""

    process: ProcessKey
    what: What
    file: int


class Sums:
    """Rows of numbers that are added up."""

    def __init__(self) -> None:
        self.rows: dict[Key, list[int]] = {}

    def add(self, process: ProcessKey, what: What, file: int, *counts: int) -> None:
        """Add to the row of a key."""
        key = Key(process, what, file)
        before = self.rows.get(key)
        if before is None:
            self.rows[key] = list(counts)
        else:
            for place, count in enumerate(counts):
                before[place] += count


@dataclass(slots=True)
class CallTables:
    """Sums over drains; the first number of a row counts calls."""

    begun_ns: int = 0
    span_ns: int = 0
    launches: Sums = field(default_factory=Sums)
    copies: Sums = field(default_factory=Sums)
    waits: Sums = field(default_factory=Sums)
    collectives: Sums = field(default_factory=Sums)
    errors: Sums = field(default_factory=Sums)
    bins: defaultdict[tuple[ProcessKey, Direction], defaultdict[int, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    memory: dict[ProcessKey, MemoryRow] = field(default_factory=dict)
    untracked: defaultdict[ProcessKey, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, drain: ProbeDrain, names: Names, waits: frozenset[str]) -> None:
        """Add one drain; `waits` are the ids of the table's rows that wait."""
        self.begun_ns = self.begun_ns or drain.begun_ns
        self.span_ns += drain.span_ns
        for launch in drain.launches:
            named = names[launch.process, launch.kernel]
            counts = (launch.launches, launch.blocks, launch.threads)
            self.launches.add(launch.process, named, launch.file, *counts)
        for copy in drain.copies:
            self.copies.add(copy.process, (copy.direction,), copy.file, copy.copies, copy.bytes)
            for size_bin, copies in copy.log2_bins:
                self.bins[copy.process, copy.direction][size_bin] += copies
        for call in drain.calls:
            if call.call in waits:
                self.waits.add(call.process, (), call.file, call.calls, call.wait_ns)
        for collective in drain.collectives:
            what = (collective.communicator, collective.call.rpartition(".")[2])
            self.collectives.add(
                collective.process,
                what,
                collective.file,
                collective.calls,
                collective.bytes,
                collective.duration_ns,
            )
        for error in drain.errors:
            self.errors.add(error.process, (error.call, error.code), 0, error.failures)
        for memory in drain.memory:
            self.memory[memory.process] = memory
            self.untracked[memory.process] += memory.state.untracked

    def memory_state(self, process: ProcessKey) -> MemoryState | None:
        """Give a process's device memory at the end of the span."""
        row = self.memory.get(process)
        if row is None:
            return None
        age_ns = max(self.begun_ns + self.span_ns - row.oldest_ns, 0) if row.oldest_ns else 0
        return row.state._replace(oldest_age_ns=age_ns, untracked=self.untracked[process])


class Shares:
    """Which share of a record's calls was seen, by file and group."""

    def __init__(self, last: Collected) -> None:
        """Take the record's last drain: where groups took turns, it ended the period."""
        self._period, self._designed, self._ended = last.period, last.shares, last.ended

    def of(self, file: int, group: ProbeGroup) -> float:
        """Give what was measured of groups in turns; what stayed attached was seen whole."""
        designed = self._designed[group] or 1.0
        if group in self._period.steady or self._ended is None:
            return designed
        return self._ended.attached.get(FileGroup(file, group), 0.0) or designed

    def mean(self, group: ProbeGroup) -> float:
        """Give the mean over files."""
        if group in self._period.steady or self._ended is None:
            return self._designed[group]
        attached = self._ended.attached
        found = [share for place, share in attached.items() if place.group is group]
        return sum(found) / len(found) if found else self._designed[group]
