"""Launches of each process over a record: those seen, and an estimate of those that were not.

A record is made of stretches, each watched throughout or not: drains, which end at every attaching
and detaching. Launches of watched stretches and their CPU time are a window of the process; windows
of the last periods say how many launches its CPU time in the other stretches stood for.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from collectors.records.gpu_calls import CountedCalls, ProbeGroup
from collectors.records.process import ProcessKey

from .call_tables import Names, What
from .launch_estimates import SeenWindow, UnseenCalls, Unwatched, mix_variance, unseen
from .periods import Collected

WINDOWS: Final = 8
_MOST_HISTORIES: Final = 4096
_MOST_KERNELS: Final = 64
_STALE_NS: Final = 120_000_000_000
"""Windows older than this say nothing of now."""


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
    """Launches of a process in a record.

    all       of them
    kernels   by what the launch table calls them
    """

    all: CountedCalls
    kernels: dict[What, CountedCalls]


@dataclass(slots=True)
class LaunchCounts:
    """One for the source.

    left_out  whether a process is not to be counted
    """

    left_out: Callable[[ProcessKey], bool]
    _stretches: list[_Stretch] = field(default_factory=list)
    _now: dict[ProcessKey, _Gathered] = field(default_factory=dict)
    _histories: OrderedDict[ProcessKey, deque[_Past]] = field(default_factory=OrderedDict)

    def add(self, collection: Collected, names: Names) -> None:
        """Add one drain to the record."""
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
        """End the record: give every process that launched, or of which that is not known.

        random   whether what was watched lay at random: not so where a burst ended it
        """
        stretches, self._stretches = self._stretches, []
        gathered, self._now = self._now, {}
        for process, of in gathered.items():
            if not self.left_out(process):
                count = self._count(process, of, stretches, random)
                if count is not None:
                    yield process, count

    def forget(self, process: ProcessKey) -> None:
        """Forget a process that ended."""
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
        earlier = self._earlier(process, end_ns)
        estimate = UnseenCalls()
        if span_ns[0]:
            used_ns = max(of.used_ns[0] - of.paid_ns[0], 0.0) if of.read else None
            unread_ns = min(of.unread_ns[0], span_ns[0])
            rest = Unwatched(of.calls[0], used_ns, span_ns[0], unread_ns)
            estimate = unseen(own, rest, [past.window for past in earlier], random)
        share = span_ns[1] / max(sum(span_ns), 1)
        counted = _counted(sum(of.calls), estimate, share)
        kernels = dict(_kernels(of, earlier, estimate, share))
        if own is not None:
            self._remember(process, _Past(own, end_ns, _frequent(of.kernels)))
        told = counted.seen or counted.value or counted.above or any(p.kernels for p in earlier)
        return LaunchCount(counted, kernels) if told else None

    def _earlier(self, process: ProcessKey, now_ns: int) -> list[_Past]:
        history = self._histories.get(process, ())
        return [past for past in history if now_ns - past.end_ns <= _STALE_NS]

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
    """Share the unseen launches out by what was seen of each kernel."""
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


def _frequent(kernels: dict[What, int]) -> dict[What, int]:
    kept = sorted(kernels.items(), key=lambda item: -item[1])[:_MOST_KERNELS]
    return dict(kept)
