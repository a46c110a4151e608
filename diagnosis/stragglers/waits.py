"""Who waited for whom: the rank that enters a call last is the one the others waited for; pure.

Direct waits do not tell who is slow: in a pipeline a rank is often late because it waited itself.
So each wait is followed to whom it was due to in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calls import Calls

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Time in calls of two ranks after both had come, by link and step.

    links   int64[links, 2], indices of ranks, the smaller first
    time    float64[links, steps], seconds
    """

    links: NDArray[np.int64]
    time_s: Times


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Seconds that ranks waited for ranks, over the whole trace.

    direct       float64[ranks, ranks]: row waited for column, who came last
    followed     the same, each wait charged to whom it was due to in the end; the
                 diagonal is what came back to the rank that waited
    transfers    what calls of two took after both had come
    calls        calls that at least two ranks met in
    impossible   calls left out because a rank left before another came: no synchronous calls, or
                 clocks that disagree
    """

    direct: Times
    followed: Times
    transfers: Transfers
    calls: int
    impossible: int


def find_waits(calls: Calls, ranks: int, steps: int, tolerance_s: float = 0.001) -> Waits:
    """Add up who waited for whom.

    tolerance_s   a rank may seem to leave by so much before the last one came
    """
    if not len(calls.call):
        nothing = Transfers(np.zeros((0, 2), dtype=np.int64), np.zeros((0, steps)))
        return Waits(np.zeros((ranks, ranks)), np.zeros((ranks, ranks)), nothing, 0, 0)
    first = np.flatnonzero(np.r_[True, calls.call[1:] != calls.call[:-1]])
    sizes = np.diff(np.r_[first, len(calls.call)])
    last = np.repeat(first + sizes - 1, sizes)
    came_s = calls.entered_s[last]
    early = calls.left_s < came_s - tolerance_s
    bad = np.repeat(np.logical_or.reduceat(early, first), sizes)
    good = np.repeat(sizes > 1, sizes) & ~bad
    waiting = np.flatnonzero(good & (calls.rank != calls.rank[last]) & (came_s > calls.entered_s))
    awaited, wait_s = calls.rank[last], came_s - calls.entered_s
    direct = np.zeros((ranks, ranks))
    np.add.at(direct, (calls.rank[waiting], awaited[waiting]), wait_s[waiting])
    met = sizes > 1
    return Waits(
        direct,
        _followed(calls, waiting, awaited, came_s, ranks),
        _transfers(calls, first[sizes == 2], good, steps),
        int(met.sum()),
        int(bad[first].sum()),
    )


def _transfers(
    calls: Calls, first: NDArray[np.int64], good: NDArray[np.bool_], steps: int
) -> Transfers:
    """Add up what calls of two took; `first` is the first row of each call of two."""
    first = first[good[first] & calls.pairs[first]]
    ends = np.sort(np.column_stack((calls.rank[first], calls.rank[first + 1])), axis=1)
    links, link = np.unique(ends, axis=0, return_inverse=True)
    left_s = np.minimum(calls.left_s[first], calls.left_s[first + 1])
    took_s = np.maximum(left_s - calls.entered_s[first + 1], 0.0)
    time_s = np.zeros((len(links), steps))
    np.add.at(time_s, (np.asarray(link).reshape(-1), calls.step[first]), took_s)
    return Transfers(links.astype(np.int64), time_s)


def _followed(
    calls: Calls, waiting: NDArray[np.int64], awaited: NDArray[np.int64], came_s: Times, ranks: int
) -> Times:
    """Charge each wait to whom it was due to in the end.

    In order of time: who comes late to a call is late by what it had waited longer than the other
    since the step began, and by what it worked longer. The first part goes on to whom it waited
    for by then, the second is its own.
    """
    charged = np.zeros((ranks, ranks))
    owed: dict[int, _Owed] = {}
    order = waiting[np.lexsort((came_s[waiting], calls.step[waiting]))]
    rows = zip(
        calls.step[order].tolist(), calls.rank[order].tolist(), awaited[order].tolist(),
        (came_s - calls.entered_s)[order].tolist(), strict=True,
    )  # fmt: skip
    now = -1
    for step, rank, whom, wait_s in rows:
        if step != now:
            now, owed = step, {}
        own, theirs = owed.setdefault(rank, _Owed()), owed.setdefault(whom, _Owed())
        for cause, part_s in theirs.reasons(whom, own, wait_s).items():
            charged[rank, cause] += part_s
            own.add(cause, part_s)
    return charged


class _Owed:
    """What a rank has waited in a step so far, by whom it was due to."""

    __slots__ = ("by_rank", "total_s")

    def __init__(self) -> None:
        self.by_rank: dict[int, float] = {}
        self.total_s = 0.0

    def add(self, cause: int, part_s: float) -> None:
        """Add a wait."""
        self.by_rank[cause] = self.by_rank.get(cause, 0.0) + part_s
        self.total_s += part_s

    def reasons(self, me: int, other: _Owed, wait_s: float) -> dict[int, float]:
        """Say why another rank waited for this one, `me`, for so long; the parts sum to it."""
        passed_s = min(wait_s, max(0.0, self.total_s - other.total_s))
        more = {
            cause: part - other.by_rank.get(cause, 0.0)
            for cause, part in self.by_rank.items()
            if part > other.by_rank.get(cause, 0.0)
        }
        weight = sum(more.values())
        if passed_s <= 0 or weight <= 0:
            return {me: wait_s}
        parts = {cause: passed_s * part / weight for cause, part in more.items()}
        parts[me] = parts.get(me, 0.0) + wait_s - passed_s
        return parts
