"""Live ranks of one host: their entries into collectives, and how busy their cgroups are; pure.

Between two collectives a rank does its own work, so marks tell who worked and who waited for whom.
NCCL's call gives work to a stream, and the wait that follows cannot return before the last peer has
called: a meeting is called, waited for and left.

Without marks: ranks that meet in every step take equally many, so who is busy for longer in a
second works longer in a step. Ranks that spin while they wait look busy: then nobody stands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import StepMarks
from diagnosis.frames.frame import HostSample, Signals

from .calls import Calls
from .collectives import CallRole, role_of
from .judge import Job
from .trace import BUSY, OperationKind

Ns = NDArray[np.int64]


class Meetings(NamedTuple):
    """A rank's meetings, in order of leaving; of a call that blocks `called` is `entered`.

    called          when its host made the collective call, the last before the wait
    entered, left   when it began to wait and when it went on
    """

    called: Ns
    entered: Ns
    left: Ns


def meetings(called: Ns, entered: Ns, left: Ns) -> Meetings:
    """Join collective calls with the wait for the GPU that follows them.

    Between two calls the longest wait is the meeting's: others are for copies, or for what is done.
    Collectives without a wait behind them join the next that has one; a wait before any is none.
    """
    calls = np.sort(called)
    group = np.searchsorted(calls, entered, side="right") - 1
    order = np.lexsort((left - entered, group))
    order = order[group[order] >= 0]
    last = np.flatnonzero(np.diff(group[order], append=-1))
    longest = order[last]
    longest = longest[np.argsort(left[longest], kind="stable")]
    return Meetings(calls[group[longest]], entered[longest], left[longest])


def merged(first: Meetings, other: Meetings) -> Meetings:
    both = [np.concatenate(pair) for pair in zip(first, other, strict=True)]
    order = np.argsort(both[2], kind="stable")
    return Meetings(*(column[order] for column in both))


def waiting_since(called: Ns, entered: Ns) -> Ns:
    """Give when ranks came to calls that they met in, all int64[ranks, calls].

    Who called last came then. A peer that already waits for its GPU waits since it began to.
    """
    last = called.argmax(axis=0)
    latest = called.max(axis=0)
    came: Ns = np.minimum(entered, latest - 1)
    came[last, np.arange(called.shape[1])] = latest
    return came


ROUND_NS: Final = 500_000_000
"""Calls are summed into rounds of at least so long: a training step has calls of many sizes, of
which only the sums compare, and a CPU quota gives time in lumps of 100 ms."""
_MOST_CALLS: Final = 100_000
_NEIGHBOURS: Final = (-1, 0, 1)
_AROUND: Final = range(-8, 9)
"""How far from a call the calls are whose order decides about it."""


class _Entries:
    """Begins and ends of calls of one rank's process by role; the oldest are forgotten."""

    def __init__(self, process: tuple[int, int]) -> None:
        self.process = process
        self.begins, self.ends = (
            {role: deque[int](maxlen=_MOST_CALLS) for role in CallRole} for _ in range(2)
        )

    def times(self, role: CallRole) -> tuple[Ns, Ns]:
        return (
            np.fromiter(self.begins[role], dtype=np.int64),
            np.fromiter(self.ends[role], dtype=np.int64),
        )

    def meetings(self) -> Meetings:
        """All calls in which the rank met others, in order of leaving."""
        entered, left = self.times(CallRole.MEETS)
        blocking = Meetings(entered, entered, left)
        return merged(
            blocking, meetings(self.times(CallRole.ENQUEUES)[1], *self.times(CallRole.WAITS))
        )


class MarkedCalls:
    """Takes marks of ranks, by cgroup in order, and gives the job that they tell of."""

    def __init__(self, ranks: Sequence[str], stages: Sequence[int] | None = None) -> None:
        self._place = {cgroup: place for place, cgroup in enumerate(ranks)}
        self._stages = np.array(stages or [0] * len(ranks), dtype=np.int32)
        self._entries: dict[int, _Entries] = {}

    @property
    def counts(self) -> Mapping[int, int]:
        return {
            rank: len(own.ends[CallRole.MEETS]) + len(own.ends[CallRole.ENQUEUES])
            for rank, own in self._entries.items()
        }

    def add(self, marks: StepMarks) -> None:
        """Take marks of one process; what is of none of the ranks is passed over."""
        rank = self._place.get(marks.cgroup)
        if rank is None:
            return
        process = marks.pid, marks.start_ns
        own = self._entries.get(rank)
        if own is None or own.process != process or marks.lost:
            # What was lost would look like own work.
            own = self._entries[rank] = _Entries(process)
        role = role_of(marks.probe)
        own.begins[role].extend((marks.ended_ns - marks.duration_ns).tolist())
        own.ends[role].extend(marks.ended_ns.tolist())

    def job(self, since_ns: int = 0) -> Job | None:
        """Give what is known since a time; None before all ranks have met twice."""
        ranks = range(len(self._stages))
        if any(rank not in self._entries for rank in ranks):
            return None
        whole = [self._entries[rank].meetings() for rank in ranks]
        seen = [Meetings(*(column[m.called >= since_ns] for column in m)) for m in whole]
        if min(len(of_rank.left) for of_rank in seen) < 2:
            return None
        longest = max(seen, key=lambda of_rank: len(of_rank.left))
        met = np.stack([_partners(longest, of_rank) for of_rank in seen])
        rounds = _rounds(longest.left)
        own = np.stack(
            [
                _own_work(of_rank.entered, of_rank.left, met[r], rounds)
                for r, of_rank in enumerate(seen)
            ]
        )
        return _job(self._stages, own, _calls(seen, met, rounds))


def _job(stages: NDArray[np.int32], own: NDArray[np.float64], calls: Calls) -> Job:
    """Give a job whose work, float64[ranks, steps], is all of one kind."""
    nothing = 0 * own
    times = {kind: own if kind is OperationKind.COMPUTE else nothing for kind in BUSY}
    ranks, steps = own.shape
    return Job(np.arange(ranks, dtype=np.int32), stages, np.arange(steps), times, calls)


def _partners(own: Meetings, theirs: Meetings) -> Ns:
    """Find the call of another rank that is one with each call: int64[calls], -1 for none.

    Calls that are one overlap; neighbours may too, where a CPU quota lets a rank leave late. Ranks
    call in one order: with the right one all calls around overlap too, each with its own.
    """
    places = np.arange(len(own.left))
    near = np.searchsorted(theirs.left, own.left)
    best = np.full(len(own.left), -1, dtype=np.int64)
    longest = np.zeros(len(own.left), dtype=np.int64)
    fewest = np.full(len(own.left), len(_AROUND), dtype=np.int64)
    for step in _NEIGHBOURS:
        other = near + step
        ahead = other - places
        common = _common(own, theirs, places, ahead)
        apart = [_common(own, theirs, places + far, ahead) < 0 for far in _AROUND]
        missed = np.count_nonzero(apart, axis=0)
        better = (common > 0) & ((missed < fewest) | ((missed == fewest) & (common > longest)))
        best[better] = other[better]
        fewest[better], longest[better] = missed[better], common[better]
    # Of two calls that found the same partner neither is sure.
    found, counts = np.unique(best[best >= 0], return_counts=True)
    best[np.isin(best, found[counts > 1])] = -1
    return best


def _common(own: Meetings, theirs: Meetings, places: Ns, ahead: Ns) -> Ns:
    """Give the overlap with the calls so far ahead; below 0: none; 0: one of them was not seen."""
    other = places + ahead
    here = (places >= 0) & (places < len(own.left)) & (other >= 0) & (other < len(theirs.left))
    places, other = np.where(here, places, 0), np.where(here, other, 0)
    begun = np.maximum(own.called[places], theirs.called[other])
    overlap = np.minimum(own.left[places], theirs.left[other]) - begun
    return np.where(here, np.where(overlap > 0, overlap, -1), 0)


def _rounds(left: Ns) -> Ns:
    """Number the round of each call; the last, which may be short, joins the one before."""
    round_ = (left - left[0]) // ROUND_NS
    _, number = np.unique(round_, return_inverse=True)
    number = np.asarray(number, dtype=np.int64).reshape(-1)
    return np.minimum(number, max(0, int(number[-1]) - 1))


def _own_work(entered: Ns, left: Ns, met: Ns, rounds: Ns) -> NDArray[np.float64]:
    """Sum the time between calls by round, in seconds; NaN where a call of the round is unknown."""
    free = np.maximum.accumulate(left)
    gap = np.r_[np.nan, np.maximum(entered[1:] - free[:-1], 0) / 1e9]
    each = np.where(met >= 0, gap[met], np.nan)
    count = int(rounds[-1]) + 1
    total = np.zeros(count)
    np.add.at(total, rounds, np.nan_to_num(each))
    calls = np.bincount(rounds, minlength=count)
    known = np.bincount(rounds[~np.isnan(each)], minlength=count)
    # A call at the edge of what was seen has no partner: its round is scaled up from the others.
    enough = known * 10 >= calls * 9
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(enough, total * calls / known, np.nan)


def _calls(seen: Sequence[Meetings], met: Ns, rounds: Ns) -> Calls:
    whole = np.flatnonzero((met >= 0).all(axis=0))
    rank = np.repeat(np.arange(len(met)), len(whole))
    called, entered, left = (
        np.stack([of_rank[column][met[r, whole]] for r, of_rank in enumerate(seen)])
        for column in range(3)
    )
    base = min(int(of_rank.called[0]) for of_rank in seen)
    return Calls.of(
        np.tile(whole, len(met)), rank, np.tile(rounds[whole], len(met)),
        (waiting_since(called, entered) - base).ravel() / 1e9, (left - base).ravel() / 1e9,
    )  # fmt: skip


class TimeSpent(StrEnum):
    """What a rank's own time in a second went to; names as the causes of diagnosis have them."""

    COMPUTE = "compute"
    THROTTLED = "cgroup_throttling"
    CONTENDED = "cpu_contention"
    DISK = "disk_io"


_SIGNALS: Final = {
    TimeSpent.COMPUTE: "cpu_ms_per_s",
    TimeSpent.THROTTLED: "throttled_delay_ms_per_s",
    TimeSpent.CONTENDED: "run_delay_ms_per_s",
    TimeSpent.DISK: "block_wait_ms_per_s",
}
_MOST_SECONDS: Final = 3_600
_MARGIN: Final = 0.1


class BusySeconds:
    """Takes frames, and keeps what each rank's cgroup did in each second."""

    def __init__(self, ranks: Sequence[str], stages: Sequence[int] | None = None) -> None:
        self._ranks = tuple(ranks)
        self._stages = np.array(stages or [0] * len(ranks), dtype=np.int32)
        self._seconds: deque[NDArray[np.float64]] = deque(maxlen=_MOST_SECONDS)
        self._ends_ns: deque[int] = deque(maxlen=_MOST_SECONDS)

    def add(self, frame: HostSample) -> None:
        by_cgroup = dict(frame.cgroups) | {
            subject.cgroup: subject.signals for subject in frame.subjects.values()
        }
        rows = [_spent(by_cgroup.get(cgroup, {})) for cgroup in self._ranks]
        self._seconds.append(np.array(rows))
        self._ends_ns.append(frame.boottime_ns)

    def job(self, since_ns: int = 0) -> Job | None:
        spent = self._spent(since_ns)
        if not len(spent):
            return None
        busy = spent.sum(axis=2).T
        nothing = np.zeros(0, dtype=np.int64)
        calls = Calls.of(nothing, nothing, nothing, np.zeros(0), np.zeros(0))
        return _job(self._stages, busy, calls)

    def reason(self, rank: int, since_ns: int = 0) -> TimeSpent | None:
        """Say what a rank's time goes to more than its peers'; None where nothing stands out.

        More CPU time is more work: under a quota more work is throttled more.
        """
        spent = self._spent(since_ns)
        peers = (self._stages == self._stages[rank]) & (np.arange(len(self._stages)) != rank)
        if not len(spent) or not peers.any():
            return None
        typical = np.nanmedian(spent, axis=0)
        excess = typical[rank] - np.median(typical[peers], axis=0)
        kinds = list(TimeSpent)
        usual = float(np.median(typical[peers].sum(axis=1)))
        if excess[0] >= _MARGIN * float(np.median(typical[peers][:, 0])) > 0:
            return TimeSpent.COMPUTE
        most = int(np.argmax(excess))
        return kinds[most] if excess[most] >= _MARGIN * usual > 0 else None

    def _spent(self, since_ns: int) -> NDArray[np.float64]:
        """Give float64[seconds, ranks, Spent], seconds a second."""
        kept = [
            row for row, end in zip(self._seconds, self._ends_ns, strict=True) if end >= since_ns
        ]
        return np.array(kept).reshape(len(kept), len(self._ranks), len(TimeSpent))


def _spent(signals: Signals) -> list[float]:
    """Take what is own time from the signals of a cgroup, NaN where it was not seen."""
    if _SIGNALS[TimeSpent.COMPUTE] not in signals:
        return [np.nan] * len(TimeSpent)
    return [signals.get(_SIGNALS[kind], 0.0) / 1e3 for kind in TimeSpent]
