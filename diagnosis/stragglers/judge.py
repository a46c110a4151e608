"""Stragglers of a job: ranks and stages compared, the kind of what is slow, who waited; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .calls import Calls, calls_of
from .peers import (
    MAD_TO_SIGMA,
    MEDIAN_ERROR,
    Compared,
    PeerRules,
    PeerVerdict,
    Times,
    Transfers,
    Waits,
    compare,
    excess_of,
    find_waits,
    margin_of,
    missing_median,
)
from .trace import BUSY, OperationKind, RankTrace

_UNEVEN_INPUT: Final = 0.1
"""Spread from step to step, a share, from which the input counts as uneven."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One pipeline stage.

    work_s         median over steps of its ranks' median own work
    over_others    median over steps of that work over the median of the other stages' in the same
                   step; None where there is no other, or nothing to compare
    uneven         whether it has more work than the others: these wait for it, whoever runs it
    uneven_input   whether each rank's work varies from step to step, and no machine is slow
    """

    stage: int
    work_s: float
    over_others: float | None
    uneven: bool
    uneven_input: bool


def compare_stages(
    times: Times, stages: NDArray[np.int32], spreads: Mapping[int, float], rules: PeerRules
) -> tuple[StageWork, ...]:
    """Compare the stages of a job step by step, by the conditions of a slow rank.

    times     float64[ranks, steps], seconds of own work; NaN: not seen, or of a slow rank
    spreads   how much the ranks of a stage typically vary from step to step, a share
    """
    names = np.unique(stages)
    work = np.stack([missing_median(times[stages == stage], axis=0) for stage in names])
    found = []
    for place, stage in enumerate(names):
        over = _over(work[place], np.delete(work, place, axis=0))
        found.append(
            StageWork(
                int(stage),
                float(np.nan_to_num(missing_median(work[place], axis=0))),
                float(np.median(over)) if len(over) else None,
                _is_uneven(over, rules),
                spreads[int(stage)] >= _UNEVEN_INPUT,
            )
        )
    return tuple(found)


def _over(own: Times, others: Times) -> Times:
    """Work over the other stages' typical one, in each step where both are known."""
    if not len(others):
        return np.zeros(0)
    typical = missing_median(others, axis=0)
    known = ~np.isnan(own) & (typical > 0)
    return np.asarray(own[known] / typical[known])


def _is_uneven(over: Times, rules: PeerRules) -> bool:
    if len(over) < rules.steps_min:
        return False
    excess = float(np.median(over)) - 1
    spread = MAD_TO_SIGMA * float(np.median(np.abs(over - np.median(over))))
    noise = MEDIAN_ERROR * spread / len(over) ** 0.5
    return excess >= rules.margin and excess > _limit(rules.z_limit, len(over)) * noise


def _limit(z: float, steps: int) -> float:
    """Student's t for z (Abramowitz, Stegun 26.7.5): a few steps may happen to agree."""
    free = steps - 1
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return z + (z**3 + z) / (4 * free) + second


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that carries slower than its like; times do not tell which of its ends is slow."""

    ranks: tuple[int, ...]
    compared: Compared


def slow_links(
    stages: NDArray[np.int32],
    busy: Times,
    transfers: Transfers,
    windows: list[slice],
    rules: PeerRules,
) -> tuple[SlowLink, ...]:
    """Compare links between the same two stages; `ranks` are indices.

    Times are set against a step's own work: a transfer of microseconds slows nobody.
    """
    if not len(transfers.links):
        return ()
    ends = stages[transfers.links].astype(np.int64)
    _, kind = np.unique(ends[:, 0] << 32 | ends[:, 1], return_inverse=True)
    work = np.nanmedian(busy, axis=0)
    found = []
    for window in windows:
        time = transfers.time_s[:, window] + work[window]
        rows = compare(time, np.asarray(kind, dtype=np.int32).reshape(-1), rules)
        found += [
            SlowLink((int(low), int(high)), row)
            for (low, high), row in zip(transfers.links, rows, strict=True)
            if row.verdict is PeerVerdict.SLOW
        ]
    worst: dict[tuple[int, ...], SlowLink] = {}
    for link in found:
        if link.ranks not in worst or link.compared.excess > worst[link.ranks].compared.excess:
            worst[link.ranks] = link
    return tuple(worst.values())


def ranks_of_links(transfers: Transfers, slow: tuple[SlowLink, ...]) -> set[int]:
    """Ranks of which every one of several links is slow, while no neighbour's are: they are it."""
    links = [(int(low), int(high)) for low, high in transfers.links]
    slow_pairs = {link.ranks for link in slow}
    of_rank: dict[int, list[tuple[int, int]]] = {}
    for link in links:
        for rank in link:
            of_rank.setdefault(rank, []).append(link)
    whole = {
        rank
        for rank, own in of_rank.items()
        if len(own) > 1 and all(link in slow_pairs for link in own)
    }
    return {
        rank
        for rank in whole
        if not any(other in whole for link in of_rank[rank] for other in link if other != rank)
    }


# When a slow rank began to be slow and when it ended, to the step; pure.
#
# Windows say that a rank is slow; they are cut blindly, so that a beginning may lie anywhere in the
# first of them or in the one before.


def slow_stretch(
    above: Times, steps: NDArray[np.int64], windows: Sequence[slice], rules: PeerRules
) -> tuple[int, int] | None:
    """Name the first and the last slow step of a rank; None where no window says it is slow.

    Sought where the sum of marks is largest, a slow step counting 1 - p and any other -p, p being
    the persistence of the rules: a burst long before, or a slow step now and then, is none.

    above     float64[steps], excess less the margin; NaN: not seen
    Source    Page 1954 (CUSUM), for the place of a change
    """
    if not windows:
        return None
    marks = np.where(np.isnan(above), 0.0, (above >= 0) - rules.persistence)
    back = np.cumsum(marks[: windows[0].stop][::-1])
    ahead = np.cumsum(marks[windows[-1].start :])
    first = windows[0].stop - 1 - int(np.argmax(back))
    last = windows[-1].start + int(np.argmax(ahead))
    return int(steps[first]), int(steps[last])


class Slowness(StrEnum):
    NONE = "none"
    COMPUTE = "compute"
    DATA_LOADING = "data_loading"
    OTHER = "other"
    COMMUNICATION = "communication"


_NAMES: Final = {
    OperationKind.COMPUTE: Slowness.COMPUTE,
    OperationKind.DATA_LOADING: Slowness.DATA_LOADING,
    OperationKind.OTHER: Slowness.OTHER,
}


@dataclass(frozen=True, slots=True)
class RankResult:
    """What is said of one rank.

    compared       in the window that says most of it: where it is slow, the worst
    window         first and last step of that window
    slow_steps     how many of its steps are above the margin, of the whole run
    steps          how many of its steps could be compared, of the whole run
    stretch        names of the first and the last slow step; None where it is not slow by its work
    waited_for_s   how long all others waited because of it
    waited_s       how long it waited for others
    """

    rank: int
    stage: int
    verdict: PeerVerdict
    slowness: Slowness
    compared: Compared
    window: tuple[int, int]
    slow_steps: int
    steps: int
    stretch: tuple[int, int] | None
    waited_for_s: float
    waited_s: float


@dataclass(frozen=True, slots=True, eq=False)
class JobJudgement:
    """What is said of a job.

    busy      float64[ranks, steps], seconds of own work
    steps     int64[steps], their names in the trace
    """

    ranks: tuple[RankResult, ...]
    links: tuple[SlowLink, ...]
    waits: Waits
    busy: Times
    steps: NDArray[np.int64]
    stages: tuple[StageWork, ...]

    def excess(self) -> Times:
        """Own work beside the peers', a share: float64[ranks, steps]; NaN: nothing to compare."""
        return excess_of(
            self.busy, np.array([result.stage for result in self.ranks], dtype=np.int32)
        )

    @property
    def slow(self) -> tuple[RankResult, ...]:
        return tuple(result for result in self.ranks if result.verdict is PeerVerdict.SLOW)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Times of the ranks of one job.

    rank, stage   int32[ranks]
    steps         int64[steps]
    times         float64[ranks, steps] by kind, seconds, the kinds of BUSY
    """

    rank: NDArray[np.int32]
    stage: NDArray[np.int32]
    steps: NDArray[np.int64]
    times: Mapping[OperationKind, Times]
    calls: Calls


def job_of(trace: RankTrace) -> Job:
    return Job(trace.ranks, trace.stage_of, trace.steps, trace.busy(), calls_of(trace))


def judge(job: Job, rules: PeerRules | None = None) -> JobJudgement:
    rules = rules or PeerRules()
    waits = find_waits(job.calls, len(job.rank), len(job.steps))
    busy = np.sum([job.times[kind] for kind in BUSY], axis=0)
    # Of nearly the same length, of at most the rules'.
    count = -(-len(job.steps) // rules.window_steps) + 1
    edges = np.linspace(0, len(job.steps), count).astype(int).tolist()
    windows = [slice(low, high) for low, high in pairwise(edges)]
    by_window = [compare(busy[:, window], job.stage, rules) for window in windows]
    links = slow_links(job.stage, busy, waits.transfers, windows, rules)
    isolated = ranks_of_links(waits.transfers, links)
    excess = excess_of(busy, job.stage)
    results, said = [], {PeerVerdict.SLOW, PeerVerdict.NORMAL}
    for index in range(len(job.rank)):
        own = [found[index] for found in by_window]
        slow = [number for number, row in enumerate(own) if row.verdict is PeerVerdict.SLOW]
        at = max(slow or range(len(own)), key=lambda n: (own[n].verdict in said, own[n].excess))
        verdict, slowness = own[at].verdict, _slowness(job, index, [windows[n] for n in slow])
        above = excess[index] - margin_of(int(np.sum(job.stage == job.stage[index])), rules)
        if not slow and index in isolated:
            verdict, slowness = PeerVerdict.SLOW, Slowness.COMMUNICATION
        results.append(
            RankResult(
                int(job.rank[index]), int(job.stage[index]), verdict, slowness, own[at],
                (int(job.steps[windows[at].start]), int(job.steps[windows[at].stop - 1])),
                int(np.sum(above >= 0)), int(np.sum(~np.isnan(above))),
                slow_stretch(above, job.steps, [windows[n] for n in slow], rules),
                float(waits.followed[:, index].sum()), float(waits.followed[index].sum()),
            )
        )  # fmt: skip
    named = tuple(
        replace(link, ranks=tuple(int(job.rank[r]) for r in link.ranks)) for link in links
    )
    accused = np.array([result.verdict is PeerVerdict.SLOW for result in results])
    healthy = np.where(accused[:, None], np.nan, busy)
    within: dict[int, list[float]] = {}
    for result in results:
        within.setdefault(result.stage, []).append(result.compared.within)
    spreads = {stage: median(own) for stage, own in within.items()}
    stages = compare_stages(healthy, job.stage, spreads, rules)
    return JobJudgement(tuple(results), named, waits, busy, job.steps, stages)


def _slowness(job: Job, rank: int, windows: list[slice]) -> Slowness:
    """Name the kind of work that makes up most of the excess over peers."""
    if not windows:
        return Slowness.NONE
    steps = np.r_[tuple(windows)]
    peers = (job.stage == job.stage[rank]) & (np.arange(len(job.stage)) != rank)
    excess = {
        kind: np.nanmedian(time[rank, steps] - missing_median(time[peers][:, steps], axis=0))
        for kind, time in job.times.items()
    }
    return _NAMES[max(excess, key=lambda kind: float(excess[kind]))]
