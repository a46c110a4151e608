"""What drains of the probes say to this host's own views: calls of processes by kernel.

While groups take turns, a record covers a governor period: only there is a count over its share
unbiased (Horvitz and Thompson, 1952). One window a period does not show its own spread: that is
taken from the differences of successive periods (Wolter, Introduction to Variance Estimation, 2nd
ed. 2007, section 8.2, v2), which is too large rather than too small where the rate drifts.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import (
    CollectiveCalls,
    CopyCalls,
    CountedCalls,
    Direction,
    ErrorCalls,
    GpuCalls,
    KernelCalls,
    ProbeGroup,
    ProcessCalls,
    ProcessLabels,
    WaitCalls,
)

from .launch_counts import CallTables, LaunchCount, LaunchCounts, Names, Shares, Sums, What
from .periods import Collected
from .probe_table import CallKind, ProbeTable

_PERIODS: Final = 8
_MOST_HISTORIES: Final = 4096

_Found = dict[ProcessKey, list[tuple[What, CountedCalls, list[int]]]]


def variance_of_sum(values: list[float], share: float) -> float:
    """Give the variance of a sum of periods' estimates, each from one window; 0 < share <= 1."""
    if share >= 1.0:
        return 0.0
    periods = len(values)
    if periods < 2:
        # All calls in one instant: the largest variance that the count allows.
        return values[0] ** 2 * (1.0 - share)
    squares = sum((b - a) ** 2 for a, b in pairwise(values))
    return (1.0 - share) * periods * squares / (2.0 * (periods - 1))


class _Rate(NamedTuple):
    calls: float
    share: float


@dataclass(slots=True)
class CallRecords:
    table: ProbeTable
    identity: Callable[[ProcessKey], ProcessLabels]
    left_out: Callable[[ProcessKey], bool]
    _tables: CallTables = field(default_factory=CallTables)
    _histories: OrderedDict[tuple[ProcessKey, ProbeGroup], deque[_Rate]] = field(
        default_factory=OrderedDict
    )
    _waits: frozenset[str] = field(init=False)
    _launches: LaunchCounts = field(init=False)

    def __post_init__(self) -> None:
        self._launches = LaunchCounts(self.left_out)
        self._waits = frozenset(row.id for row in self.table.rows if row.kind is CallKind.WAIT)

    def of(self, collected: Iterable[Collected], names: Names) -> Iterator[GpuCalls]:
        for collection in collected:
            self._tables.add(collection.drain, names, self._waits)
            self._launches.add(collection, names)
            switched = collection.attached >= collection.period.steady
            if collection.ended is not None or (switched and not collection.period.in_turns):
                yield self._record(Shares(collection), collection.cut_off)
                self._tables = CallTables()

    def forget(self, process: ProcessKey) -> None:
        self._launches.forget(process)
        for group in ProbeGroup:
            self._histories.pop((process, group), None)

    def _record(self, shares: Shares, cut_off: bool) -> GpuCalls:
        tables = self._tables
        launches = dict(self._launches.take(not cut_off))
        none = LaunchCount(CountedCalls(0, 0.0, 0.0, shares.mean(ProbeGroup.LAUNCH)), {})
        grids = _grids(tables.launches)
        copies = self._counted(tables.copies, shares, ProbeGroup.COPY)
        waits = self._counted(tables.waits, shares, ProbeGroup.SYNCHRONISE)
        collectives = self._counted(tables.collectives, shares, ProbeGroup.COLLECTIVE)
        errors = self._counted(tables.errors, shares, ProbeGroup.OTHER)
        live = {process for process, row in tables.memory.items() if row.state.live_bytes}
        called = (launches, copies, waits, collectives, errors)
        processes = sorted(live.union(*called))
        return GpuCalls(
            tables.begun_ns,
            tables.span_ns,
            tuple(
                ProcessCalls(
                    process,
                    self.identity(process),
                    launches.get(process, none).all,
                    WaitCalls(
                        _total(waits, process, shares.mean(ProbeGroup.SYNCHRONISE)),
                        sum(sums[1] for _, _, sums in waits.get(process, ())),
                    ),
                    tuple(
                        CopyCalls(
                            (direction := Direction(str(what[0]))),
                            counted,
                            sums[1],
                            tuple(sorted(tables.bins[process, direction].items())),
                        )
                        for what, counted, sums in copies.get(process, ())
                    ),
                    tables.memory_state(process),
                    tuple(
                        CollectiveCalls(int(what[0]), str(what[1]), counted, sums[1], sums[2])
                        for what, counted, sums in collectives.get(process, ())
                    ),
                    tuple(
                        ErrorCalls(str(what[0]), int(what[1]), sums[0])
                        for what, _, sums in errors.get(process, ())
                    ),
                )
                for process in processes
            ),
            tuple(
                KernelCalls(process, str(what[0]), str(what[1]), counted, *grids[process, what])
                for process, count in launches.items()
                for what, counted in count.kernels.items()
            ),
            {group: shares.mean(group) for group in ProbeGroup},
        )

    def _counted(self, table: Sums, shares: Shares, group: ProbeGroup) -> _Found:
        sums: defaultdict[ProcessKey, dict[What, list[int]]] = defaultdict(dict)
        values: defaultdict[tuple[ProcessKey, What], float] = defaultdict(float)
        for key, counts in table.rows.items():
            if self.left_out(key.process):
                continue
            before = sums[key.process].get(key.what, [0] * len(counts))
            sums[key.process][key.what] = [a + b for a, b in zip(before, counts, strict=True)]
            values[key.process, key.what] += counts[0] / shares.of(key.file, group)
        mean = shares.mean(group)
        found: _Found = {}
        for process, rows in sums.items():
            calls = sum(counts[0] for counts in rows.values())
            relative = self._relative_variance(process, calls, mean, group)
            found[process] = [
                (
                    what,
                    CountedCalls(counts[0], value, value**2 * relative if value else 0.0, mean),
                    counts,
                )
                for what, counts in rows.items()
                for value in (values[process, what],)
            ]
        return found

    def _relative_variance(
        self, process: ProcessKey, calls: int, share: float, group: ProbeGroup
    ) -> float:
        """Give the variance over the value's square, of a process's calls in this period."""
        if share <= 0.0:
            return inf  # what was counted while probes were being switched off
        if share >= 1.0 or not calls:
            return 0.0
        history = self._histories.setdefault((process, group), deque(maxlen=_PERIODS))
        span_ns = max(self._tables.span_ns, 1)
        history.append(_Rate(calls / span_ns, share))
        while len(self._histories) > _MOST_HISTORIES:
            self._histories.popitem(last=False)
        # As if all periods had been as long as this one: the estimate compares like with like.
        values = [round(past.calls * span_ns) / past.share for past in history]
        mean = sum(past.share for past in history) / len(history)
        return variance_of_sum(values, mean) / len(history) / (calls / share) ** 2


def _grids(launches: Sums) -> dict[tuple[ProcessKey, What], tuple[int, int]]:
    grids: dict[tuple[ProcessKey, What], tuple[int, int]] = {}
    for key, (_, blocks, threads) in launches.rows.items():
        before = grids.get((key.process, key.what), (0, 0))
        grids[key.process, key.what] = (before[0] + blocks, before[1] + threads)
    return grids


def _total(found: _Found, process: ProcessKey, share: float) -> CountedCalls:
    """Add up a process's rows: they were seen in the same windows, so their errors add up."""
    rows = [counted for _, counted, _ in found.get(process, ())]
    variance = sum(row.variance**0.5 for row in rows) ** 2 if share > 0.0 else inf
    return CountedCalls(
        sum(row.seen for row in rows), sum(row.value for row in rows), variance, share
    )
