"""Launches of each process over a record: those seen, and an estimate of those that were not.

A record's stretches are watched throughout or not. Watched launches and their CPU time make a
window; windows of the last periods say what CPU time in the other stretches stood for.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import CountedCalls, Direction, FileGroup, MemoryState, ProbeGroup

from .activity_records import Named
from .launch_estimates import SeenWindow, UnseenCalls, Unwatched, mix_variance, unseen
from .periods import Collected
from .readout import MemoryRow, ProbeDrain

Names = Mapping[tuple[ProcessKey, int], Named]
What = tuple[str | int, ...]


class Key(NamedTuple):
    process: ProcessKey
    what: What
    file: int


class Sums:
    def __init__(self) -> None:
        self.rows: dict[Key, list[int]] = {}

    def add(self, process: ProcessKey, what: What, file: int, *counts: int) -> None:
        key = Key(process, what, file)
        before = self.rows.get(key)
        if before is None:
            self.rows[key] = list(counts)
        else:
            for place, count in enumerate(counts):
                before[place] += count


@dataclass(slots=True)
class CallTables:
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
        row = self.memory.get(process)
        if row is None:
            return None
        age_ns = max(self.begun_ns + self.span_ns - row.oldest_ns, 0) if row.oldest_ns else 0
        return row.state._replace(oldest_age_ns=age_ns, untracked=self.untracked[process])


class Shares:
    def __init__(self, last: Collected) -> None:
        """Take the record's last drain: where groups took turns, it ended the period."""
        self._period, self._designed, self._ended = last.period, last.shares, last.ended

    def of(self, file: int, group: ProbeGroup) -> float:
        designed = self._designed[group] or 1.0
        if group in self._period.steady or self._ended is None:
            return designed
        return self._ended.attached.get(FileGroup(file, group), 0.0) or designed

    def mean(self, group: ProbeGroup) -> float:
        if group in self._period.steady or self._ended is None:
            return self._designed[group]
        attached = self._ended.attached
        found = [share for place, share in attached.items() if place.group is group]
        return sum(found) / len(found) if found else self._designed[group]


WINDOWS: Final = 8
_MOST_HISTORIES: Final = 4096
_MOST_KERNELS: Final = 64
_STALE_NS: Final = 120_000_000_000


class _Stretch(NamedTuple):
    """One drain, of all processes."""

    begun_ns: int
    span_ns: int
    watched: bool


@dataclass(slots=True)
class _Gathered:
    """One process in the record so far: index 0 unwatched, 1 watched."""

    used_ns: list[float] = field(default_factory=lambda: [0.0, 0.0])
    paid_ns: list[float] = field(default_factory=lambda: [0.0, 0.0])
    unread_ns: list[int] = field(default_factory=lambda: [0, 0])
    calls: list[int] = field(default_factory=lambda: [0, 0])
    kernels: defaultdict[What, int] = field(default_factory=lambda: defaultdict(int))
    read: bool = False
    calibrated: bool = True


class _Past(NamedTuple):
    """A window, when it ended, and its launches by kernel: the most frequent ones."""

    window: SeenWindow
    end_ns: int
    kernels: dict[What, int]


class LaunchCount(NamedTuple):
    """Launches of a process in a record."""

    all: CountedCalls
    kernels: dict[What, CountedCalls]


@dataclass(slots=True)
class LaunchCounts:
    """One for the source."""

    left_out: Callable[[ProcessKey], bool]
    _stretches: list[_Stretch] = field(default_factory=list)
    _now: dict[ProcessKey, _Gathered] = field(default_factory=dict)
    _histories: OrderedDict[ProcessKey, deque[_Past]] = field(default_factory=OrderedDict)

    def add(self, collection: Collected, names: Names) -> None:
        drain = collection.drain
        watched = ProbeGroup.LAUNCH in collection.attached
        self._stretches.append(_Stretch(drain.begun_ns, drain.span_ns, watched))
        for process, grown_ns in collection.cpu_ns.items():
            gathered = self._now.setdefault(process, _Gathered())
            if grown_ns is None:
                gathered.unread_ns[watched] += drain.span_ns
            else:
                gathered.used_ns[watched] += grown_ns
                gathered.read = True
        for process, paid_ns in collection.paid_ns.items():
            gathered = self._now.setdefault(process, _Gathered())
            gathered.paid_ns[watched] += paid_ns
            gathered.calibrated &= collection.calibrated
        for row in drain.launches:
            gathered = self._now.setdefault(row.process, _Gathered())
            gathered.calls[watched] += row.launches
            gathered.kernels[names[row.process, row.kernel]] += row.launches

    def take(self, random: bool) -> Iterator[tuple[ProcessKey, LaunchCount]]:
        """End the record: give every process that launched, or of which that is not known."""
        stretches, self._stretches = self._stretches, []
        gathered, self._now = self._now, {}
        for process, of in gathered.items():
            if not self.left_out(process):
                count = self._count(process, of, stretches, random)
                if count is not None:
                    yield process, count

    def forget(self, process: ProcessKey) -> None:
        self._histories.pop(process, None)

    def _count(
        self, process: ProcessKey, of: _Gathered, stretches: list[_Stretch], random: bool
    ) -> LaunchCount | None:
        span_ns = [0, 0]
        for stretch in stretches:
            after = min(stretch.begun_ns + stretch.span_ns - process.start_ns, stretch.span_ns)
            span_ns[stretch.watched] += max(after, 0)
        own = None
        if span_ns[1] and not (of.read and of.unread_ns[1]):
            own = SeenWindow(of.calls[1], of.used_ns[1], of.paid_ns[1], span_ns[1], of.calibrated)
        end_ns = stretches[-1].begun_ns + stretches[-1].span_ns
        history = self._histories.get(process, ())
        earlier = [past for past in history if end_ns - past.end_ns <= _STALE_NS]
        estimate = UnseenCalls()
        if span_ns[0]:
            used_ns = of.used_ns[0] if of.read else None
            unread_ns = min(of.unread_ns[0], span_ns[0])
            rest = Unwatched(
                of.calls[0], used_ns, span_ns[0], unread_ns, of.paid_ns[0], of.calibrated
            )
            estimate = unseen(own, rest, [past.window for past in earlier], random)
        share = span_ns[1] / max(sum(span_ns), 1)
        counted = _counted(sum(of.calls), estimate, share)
        kernels = dict(_kernels(of, earlier, estimate, share))
        if own is not None:
            frequent = sorted(of.kernels.items(), key=lambda item: -item[1])[:_MOST_KERNELS]
            self._remember(process, _Past(own, end_ns, dict(frequent)))
        told = counted.seen or counted.value or counted.above or any(p.kernels for p in earlier)
        return LaunchCount(counted, kernels) if told else None

    def _remember(self, process: ProcessKey, past: _Past) -> None:
        self._histories.setdefault(process, deque(maxlen=WINDOWS)).append(past)
        self._histories.move_to_end(process)
        while len(self._histories) > _MOST_HISTORIES:
            self._histories.popitem(last=False)


def _counted(seen: int, estimate: UnseenCalls, share: float) -> CountedCalls:
    return CountedCalls(
        seen,
        seen + estimate.value,
        estimate.variance,
        share,
        estimate.below,
        estimate.above + estimate.beyond,
    )


def _kernels(
    of: _Gathered, earlier: Iterable[_Past], estimate: UnseenCalls, share: float
) -> Iterator[tuple[What, CountedCalls]]:
    seen = sum(of.kernels.values())
    mixes = [past.kernels for past in earlier if past.kernels] + [of.kernels]
    wholes = [sum(mix.values()) for mix in mixes]
    for what, calls in of.kernels.items():
        part = calls / seen
        own = UnseenCalls(
            estimate.value * part,
            estimate.variance * part**2,
            estimate.below * part,
            estimate.above * part,
            estimate.beyond,
        )
        if estimate.value:
            spread = mix_variance([mix.get(what, 0) for mix in mixes], wholes, part)
            if spread == inf:
                own = own._replace(below=own.value, above=max(own.above, estimate.value))
            else:
                own = own._replace(variance=own.variance + spread * estimate.value**2)
        yield what, _counted(calls, own, share)
