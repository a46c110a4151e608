"""Which rank of a group of peers is slow, over steps, and who waited for whom; pure.

Ranks are compared with ranks of their own pipeline stage, step by step. A rank is slow when it is
so by a margin, far outside of what peers and steps scatter, and in most steps. Waits are followed
to whom they were due to in the end: in a pipeline a rank is often late because it waited itself.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .calls import Calls

MAD_TO_SIGMA: Final = 1.4826
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median over that of a mean, of normal values."""

_FEWEST_OF_A_SPREAD: Final = 4

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PeerRules:
    """When a rank is called slow.

    z_limit        distance from its peers, in their spread
    margin         excess over the peers' median, as a share of it
    pair_margin    the same in groups of two or three, of which no spread can be had
    persistence    share of the steps in which the excess is above the margin
    steps_min      fewer steps accuse nobody
    window_steps   a rank must be slow in one window of at most so many steps; a longer trace is cut
                   into windows of nearly the same length
    spread_floor   equal machines differ by this share, even where few peers happen to agree
    """

    z_limit: float = 6.0
    margin: float = 0.10
    pair_margin: float = 0.20
    persistence: float = 0.7
    steps_min: int = 5
    window_steps: int = 50
    spread_floor: float = 0.01


class Comparison(StrEnum):
    MAD = "mad"
    RATIO = "ratio"
    NONE = "none"


class PeerVerdict(StrEnum):
    SLOW = "slow"
    NORMAL = "normal"
    NO_PEERS = "no_peers"
    TOO_FEW_STEPS = "too_few_steps"


@dataclass(frozen=True, slots=True)
class Compared:
    """One rank beside its peers.

    z            distance in spreads; None where the group is too small for a spread
    excess       median over steps of (own - peers' median) / peers' median; 0 without peers
    excess_s     median over steps of own - peers' median
    persistence  share of its steps in which the excess is above the margin
    within       spread of the rank's own excess from step to step, a share
    """

    verdict: PeerVerdict
    test: Comparison
    z: float | None
    excess: float
    excess_s: float
    persistence: float
    within: float
    steps: int


def excess_of(times: Times, stages: NDArray[np.int32]) -> Times:
    """Give each rank's own work beside its peers' as a share of theirs, float64[ranks, steps].

    times     float64[ranks, steps], seconds of own work; NaN: not seen
    """
    found = np.full_like(times, np.nan)
    for stage in np.unique(stages):
        own = times[stages == stage]
        if len(own) > 1:
            found[stages == stage] = _beside(own)[0]
    return found


def margin_of(ranks: int, rules: PeerRules) -> float:
    return rules.margin if ranks >= _FEWEST_OF_A_SPREAD else rules.pair_margin


def compare(times: Times, stages: NDArray[np.int32], rules: PeerRules) -> list[Compared]:
    """Compare each rank with its stage's others; times float64[ranks, steps], NaN: not seen."""
    members = [np.flatnonzero(stages == stage) for stage in np.unique(stages)]
    groups = [_Group(times[ranks]) for ranks in members]
    shared = _shared_spread(groups)
    found: list[Compared | None] = [None] * len(stages)
    for ranks, group in zip(members, groups, strict=True):
        for rank, compared in zip(ranks, group.judge(shared, rules), strict=True):
            found[rank] = compared
    return [compared for compared in found if compared is not None]


Spreads = tuple[float, float]
"""Of the whole job: between the ranks of a stage, and from step to step."""


class _Group:
    """The ranks of one stage: excess over the peers, float64[ranks, steps]."""

    def __init__(self, times: Times) -> None:
        """Take the times of one stage; a step counts where two ranks or more were seen."""
        self.excess, self.excess_s = _beside(times)
        self.typical = missing_median(self.excess, axis=1)
        strayed = missing_median(np.abs(self.excess - self.typical[:, None]), axis=1)
        self.within = MAD_TO_SIGMA * strayed
        self.steps = (~np.isnan(self.excess)).sum(axis=1)

    def judge(self, shared: Spreads, rules: PeerRules) -> list[Compared]:
        count = len(self.typical)
        test = Comparison.MAD if count >= _FEWEST_OF_A_SPREAD else Comparison.RATIO
        margin = margin_of(count, rules)
        # No more than half of a group can be above its median: never is a majority accused.
        return [
            self._one(rank, test if count > 1 else Comparison.NONE, margin, shared, rules)
            for rank in range(count)
        ]

    def _one(
        self,
        rank: int,
        test: Comparison,
        margin: float,
        shared: Spreads,
        rules: PeerRules,
    ) -> Compared:
        steps, (between, shared_within) = int(self.steps[rank]), shared
        if test is Comparison.NONE or not steps:
            verdict = PeerVerdict.NO_PEERS if test is Comparison.NONE else PeerVerdict.TOO_FEW_STEPS
            return Compared(verdict, test, None, 0.0, 0.0, 0.0, 0.0, steps)
        typical, within = float(self.typical[rank]), float(self.within[rank])
        persistence = float(np.sum(self.excess[rank] >= margin)) / steps
        excess_s = float(np.nanmedian(self.excess_s[rank]))
        if steps < rules.steps_min:
            few = PeerVerdict.TOO_FEW_STEPS
            return Compared(few, test, None, typical, excess_s, persistence, within, steps)
        noise = MEDIAN_ERROR * max(shared_within, within) / steps**0.5
        z, far = None, typical > rules.z_limit * noise
        if test is Comparison.MAD:
            middle = float(np.nanmedian(self.typical))
            own = MAD_TO_SIGMA * float(np.nanmedian(np.abs(self.typical - middle)))
            z = (typical - middle) / max(own, rules.spread_floor, between, noise)
            far = z >= rules.z_limit
        slow = far and typical >= margin and persistence >= rules.persistence
        verdict = PeerVerdict.SLOW if slow else PeerVerdict.NORMAL
        return Compared(verdict, test, z, typical, excess_s, persistence, within, steps)


def _beside(times: Times) -> tuple[Times, Times]:
    """Excess over the peers of one stage, as a share of theirs and in seconds, by rank and step."""
    seen = (~np.isnan(times)).sum(axis=0) >= min(2, len(times))
    peers = times[::-1] if len(times) == 2 else missing_median(times, axis=0)[None, :]
    excess_s = np.where(seen, times - peers, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(peers > 0, excess_s / peers, np.nan), excess_s


def _shared_spread(groups: list[_Group]) -> Spreads:
    """Spread of the job, between ranks and from step to step: by chance three of four agree."""
    many = [group for group in groups if len(group.typical) >= _FEWEST_OF_A_SPREAD]
    apart = [np.abs(group.typical - missing_median(group.typical, axis=0)) for group in many]
    within = np.concatenate([group.within for group in groups])
    between = missing_median(np.concatenate(apart), axis=0) if apart else 0.0
    return MAD_TO_SIGMA * float(np.nan_to_num(between)), float(
        np.nan_to_num(missing_median(within, axis=0))
    )


def missing_median(values: Times, axis: int) -> Times:
    """Median without the missing; NaN, and no warning, where nothing is left."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis))


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Time in calls of two ranks after both had come, float64[links, steps], seconds.

    links   int64[links, 2], indices of ranks, the smaller first
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
    """Add up who waited for whom; a rank may seem to leave `tolerance_s` before the last came."""
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

    Who comes late to a call is late by what it had waited longer than the other, which goes on to
    whom it waited for by then, and by what it worked longer, which is its own.
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


@dataclass(slots=True)
class _Owed:
    """What a rank has waited in a step so far, by whom it was due to."""

    by_rank: dict[int, float] = field(default_factory=dict)
    total_s: float = 0.0

    def add(self, cause: int, part_s: float) -> None:
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
