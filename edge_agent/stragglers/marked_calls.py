"""Entries of live ranks into collectives, from marks of a function that returns when it is done.

Pure. Between two collectives a rank does its own work, so the marks give both sides: who worked for
how long, and who waited for whom. Ranks are on one host, whose one clock all marks share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.activity import StepMarks

from .calls import Calls
from .judge import Job
from .operations import Kind

ROUND_NS: Final = 500_000_000
"""Calls are summed into rounds of at least so long: a training step has calls of many sizes, of
which only the sums compare, and a CPU quota gives time in lumps of 100 ms."""
_MOST_CALLS: Final = 100_000
_NEIGHBOURS: Final = (-1, 0, 1)

Ns = NDArray[np.int64]


@dataclass(slots=True)
class _Entries:
    """Calls of one rank's process, in order of leaving; the oldest are forgotten."""

    process: tuple[int, int]
    entered: deque[int]
    left: deque[int]

    @classmethod
    def of(cls, process: tuple[int, int]) -> _Entries:
        return cls(process, deque(maxlen=_MOST_CALLS), deque(maxlen=_MOST_CALLS))


class MarkedCalls:
    """Takes marks as they come, and gives the job that they tell of.

    ranks   cgroup of each rank, in order; its stage beside it
    """

    def __init__(self, ranks: Sequence[str], stages: Sequence[int] | None = None) -> None:
        self._place = {cgroup: place for place, cgroup in enumerate(ranks)}
        self._stages = np.array(stages or [0] * len(ranks), dtype=np.int32)
        self._entries: dict[int, _Entries] = {}

    @property
    def counts(self) -> Mapping[int, int]:
        """Calls kept, by rank."""
        return {rank: len(own.left) for rank, own in self._entries.items()}

    def add(self, marks: StepMarks) -> None:
        """Take marks of one process; what is of none of the ranks is passed over."""
        rank = self._place.get(marks.cgroup)
        if rank is None:
            return
        process = marks.pid, marks.start_ns
        own = self._entries.get(rank)
        if own is None or own.process != process or marks.lost:
            # What was lost would look like own work.
            own = self._entries[rank] = _Entries.of(process)
        own.entered.extend((marks.ended_ns - marks.duration_ns).tolist())
        own.left.extend(marks.ended_ns.tolist())

    def job(self, since_ns: int = 0) -> Job | None:
        """Give what is known since a time; None before all ranks have met twice."""
        ranks = range(len(self._stages))
        if any(rank not in self._entries for rank in ranks):
            return None
        entered, left = zip(*(self._sorted(rank, since_ns) for rank in ranks), strict=True)
        if min(len(one) for one in left) < 2:
            return None
        longest = max(ranks, key=lambda rank: len(left[rank]))
        met = np.stack(
            [_partners(entered[longest], left[longest], entered[r], left[r]) for r in ranks]
        )
        rounds = _rounds(left[longest])
        own = np.stack([_own_work(entered[r], left[r], met[r], rounds) for r in ranks])
        return Job(
            np.arange(len(ranks), dtype=np.int32),
            self._stages,
            np.arange(int(rounds[-1]) + 1, dtype=np.int64),
            {Kind.COMPUTE: own, Kind.DATA_LOADING: 0 * own, Kind.OTHER: 0 * own},
            _calls(entered, left, met, rounds),
        )

    def _sorted(self, rank: int, since_ns: int) -> tuple[Ns, Ns]:
        own = self._entries[rank]
        left = np.fromiter(own.left, dtype=np.int64)
        entered = np.fromiter(own.entered, dtype=np.int64)
        order = np.argsort(left, kind="stable")
        order = order[entered[order] >= since_ns]
        return entered[order], left[order]


def _partners(entered: Ns, left: Ns, their_entered: Ns, their_left: Ns) -> Ns:
    """Find the call of another rank that overlaps most with each call: int64[calls], -1 for none.

    No rank leaves a collective before the last has entered it: calls that are one overlap.
    """
    near = np.searchsorted(their_left, left)
    best = np.full(len(left), -1, dtype=np.int64)
    overlap = np.zeros(len(left), dtype=np.int64)
    for step in _NEIGHBOURS:
        other = np.clip(near + step, 0, len(their_left) - 1)
        common = np.minimum(left, their_left[other]) - np.maximum(entered, their_entered[other])
        better = common > overlap
        best[better], overlap[better] = other[better], common[better]
    # Of two calls that found the same partner neither is sure.
    found, counts = np.unique(best[best >= 0], return_counts=True)
    best[np.isin(best, found[counts > 1])] = -1
    return best


def _rounds(left: Ns) -> Ns:
    """Number the round of each call; the last, which may be short, joins the one before."""
    round_ = (left - left[0]) // ROUND_NS
    _, number = np.unique(round_, return_inverse=True)
    number = np.asarray(number, dtype=np.int64).reshape(-1)
    return np.minimum(number, max(0, int(number[-1]) - 1))


def _own_work(entered: Ns, left: Ns, met: Ns, rounds: Ns) -> NDArray[np.float64]:
    """Sum the time between calls, by round, in seconds; NaN where a call of the round is unknown.

    Calls of several threads may overlap: then there is no time between them.
    """
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


def _calls(entered: Sequence[Ns], left: Sequence[Ns], met: Ns, rounds: Ns) -> Calls:
    """Give the entries of calls that all ranks met in."""
    whole = np.flatnonzero((met >= 0).all(axis=0))
    rank = np.repeat(np.arange(len(met)), len(whole))
    base = min(int(one[0]) for one in entered)
    at = [own[met[r, whole]] - base for r, own in enumerate(entered)]
    end = [own[met[r, whole]] - base for r, own in enumerate(left)]
    return Calls.of(
        np.tile(whole, len(met)), rank, np.tile(rounds[whole], len(met)),
        np.concatenate(at) / 1e9, np.concatenate(end) / 1e9,
    )  # fmt: skip
