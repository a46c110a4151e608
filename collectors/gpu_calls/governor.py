"""The overhead governor: which groups of probes are attached when. Pure.

Hits, and the stalls of attaching and detaching, stay under a share of the wall time of the
worst-hit process. In order:

1. Everything fits: all groups stay attached.
2. It does not: launches and small groups stay attached, the others are attached in one random
   window a period, all files at once. Its place is uniform over the period and wraps at the end:
   count / duty is unbiased (Horvitz and Thompson, 1952). Results of launches, which double what a
   launch costs, are dropped where there is no room for their window.
3. Launches alone do not fit: they are attached in the window too.
4. The window would be too short to be worth its stall: groups are dropped whole, in `DROP_ORDER`.

Where each place takes a tenth of a second to let go, launches alone take turns, or none. Dropped
groups are tried again after a while. A burst is cut off by `over`: it costs one period's allowance
in excess at most, which the next period pays back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup

SECOND: Final = 1_000_000_000

DROP_ORDER: Final = (
    ProbeGroup.OTHER,
    ProbeGroup.LAUNCH_RESULT,
    ProbeGroup.SYNCHRONISE,
    ProbeGroup.MEMORY,
    ProbeGroup.COPY,
    ProbeGroup.COLLECTIVE,
    ProbeGroup.LAUNCH,
    ProbeGroup.NAME,
)
"""The first is dropped first."""

STEADY_ONLY: Final = frozenset({ProbeGroup.NAME, ProbeGroup.MEMORY})
"""A name or an allocation that was missed is wrong for good: never attached in turns."""

_LAUNCHES_FIRST: Final = STEADY_ONLY | {ProbeGroup.LAUNCH}
_GIVEN_UP: Final = (ProbeGroup.LAUNCH_RESULT, ProbeGroup.OTHER)
"""Dropped, where there is no room for their window, so that launches stay attached."""

_STEADY_PART: Final = 0.25
_STALL_PART: Final = 0.25
_AIM: Final = 0.9
_REMEMBERED: Final = 3
_FADING: Final = 0.97
"""What is left in a period of the remembered rate of a group that is not attached: in time it is
small enough to be tried again."""


@dataclass(frozen=True, slots=True)
class GovernorSettings:
    """What the governor is held to.

    budget          share of the wall time of the worst-hit process, 0 < budget < 1
    turns           groups that may be attached in turns
    period_ns       the least and the longest period; between them it follows from the stall
    """

    budget: float = 0.005
    turns: frozenset[ProbeGroup] = frozenset(ProbeGroup)
    period_ns: tuple[int, int] = (5 * SECOND, 15 * SECOND)
    least_window_ns: int = SECOND // 10

    def __post_init__(self) -> None:
        if not 0.0 < self.budget < 1.0:
            raise ValueError(f"probe budget: expected a share between 0 and 1, got {self.budget}")
        if not 0 < self.period_ns[0] <= self.period_ns[1]:
            raise ValueError(f"governor period: expected 0 < least <= longest: {self.period_ns}")


@dataclass(frozen=True, slots=True)
class ProbeLoad:
    """A group on a file in the period that ended; `cost_ns` of a hit, `stall_ns` of a switch."""

    place: FileGroup
    hits: Mapping[ProcessKey, int]
    attached_ns: int
    cost_ns: float
    stall_ns: int


@dataclass(frozen=True, slots=True)
class Period:
    """What is attached in one period.

    windows    when the groups in turns are attached: ascending [from, to) on the caller's clock
    duty       share of the period that the windows cover: the probability of every instant
    predicted  share of the worst-hit process that this will cost, stalls included
    """

    begin_ns: int
    end_ns: int
    steady: frozenset[ProbeGroup]
    in_turns: frozenset[ProbeGroup]
    dropped: tuple[ProbeGroup, ...]
    windows: tuple[tuple[int, int], ...]
    duty: float
    predicted: float

    def attached(self, at_ns: int) -> frozenset[ProbeGroup]:
        if any(start <= at_ns < end for start, end in self.windows):
            return self.steady | self.in_turns
        return self.steady

    def next_change_ns(self, at_ns: int) -> int:
        edges = (edge for window in self.windows for edge in window if edge > at_ns)
        return min(min(edges, default=self.end_ns), self.end_ns)

    def share(self, group: ProbeGroup) -> float:
        if group in self.steady:
            return 1.0
        return self.duty if group in self.in_turns else 0.0


@dataclass(slots=True)
class _Memory:
    """Hits a second of one process on one group of one file, as lately measured."""

    rates: list[float]
    cost_ns: float


@dataclass(slots=True)
class Governor:
    """One for the machine; `random_below(n)` gives the secret place of a window."""

    settings: GovernorSettings
    random_below: Callable[[int], int]
    _memory: dict[tuple[FileGroup, ProcessKey], _Memory] = field(default_factory=dict)
    _known: dict[FileGroup, set[ProcessKey]] = field(default_factory=lambda: defaultdict(set))
    _stalls: dict[FileGroup, int] = field(default_factory=dict)
    _debt: float = 0.0
    _length_ns: int = 0

    def period(self, now_ns: int, measured: Iterable[ProbeLoad] = ()) -> Period:
        self._learn(tuple(measured))
        choice, dropped = self._choose()
        self._length_ns = choice.end_ns
        return replace(
            choice,
            begin_ns=now_ns,
            end_ns=now_ns + choice.end_ns,
            dropped=dropped,
            windows=self._windows(now_ns, choice) if choice.in_turns else (),
        )

    def over(self, period: Period, spent_ns: Mapping[ProcessKey, float]) -> bool:
        """Tell whether a period has cost a process twice its allowance: detach what is in turns."""
        allowance = self.settings.budget * (period.end_ns - period.begin_ns)
        return max(spent_ns.values(), default=0.0) > 2.0 * allowance

    def _learn(self, measured: tuple[ProbeLoad, ...]) -> None:
        remembered: dict[tuple[FileGroup, ProcessKey], _Memory] = {}
        spent: dict[ProcessKey, float] = {}
        for load in measured:
            for process, hits in load.hits.items():
                spent[process] = spent.get(process, 0.0) + hits * load.cost_ns
            for process in load.hits.keys() | self._known[load.place]:
                old = self._memory.get((load.place, process), _Memory([], 0.0))
                rates = _next_rates(old.rates, load, process, self.settings.least_window_ns // 2)
                if rates:
                    remembered[load.place, process] = _Memory(rates, load.cost_ns)
        self._memory = remembered
        self._known = defaultdict(set)
        for place, process in remembered:
            self._known[place].add(process)
        self._stalls = {load.place: load.stall_ns for load in measured}
        allowance = self.settings.budget * self._length_ns
        excess = max(spent.values(), default=0.0) - allowance
        self._debt = min(max(excess, 0.0), allowance)

    def _choose(self) -> tuple[Period, tuple[ProbeGroup, ...]]:
        loads = self._loads()
        every = frozenset(DROP_ORDER)
        given_up = (frozenset(_GIVEN_UP[:n]) for n in range(len(_GIVEN_UP) + 1))
        ways = [(every, frozenset[ProbeGroup]())]
        ways += [(every - dear, _LAUNCHES_FIRST) for dear in given_up]
        dropping = [(frozenset(DROP_ORDER[n:]), STEADY_ONLY) for n in range(len(DROP_ORDER) + 1)]
        if self.settings.turns < every and ProbeGroup.LAUNCH in self.settings.turns:
            # What is cheap stays: to let it go for a burst's sake would take half a minute.
            dropping.insert(1, (every - {ProbeGroup.LAUNCH, ProbeGroup.LAUNCH_RESULT}, every))
        ways += dropping
        for groups, steady in ways:
            choice = self._fit(groups, steady, loads)
            if choice is not None:
                return choice, tuple(group for group in DROP_ORDER if group not in groups)
        raise AssertionError("no groups at all always fit")

    def _fit(
        self,
        groups: frozenset[ProbeGroup],
        whole: frozenset[ProbeGroup],
        loads: Mapping[ProcessKey, Mapping[ProbeGroup, float]],
    ) -> Period | None:
        """Give the best period from 0 that keeps exactly these groups, or None: there is none."""
        allowed = self.settings.budget * _AIM
        least, longest = self.settings.period_ns
        turns = self.settings.turns
        # Paid back by what takes turns: what then is left is within its own rate.
        debt = 0.0 if turns and not groups & turns else self._debt
        budget = max(allowed - debt / max(self._length_ns, 1), allowed / 10)
        total = max((_sum(load, groups) for load in loads.values()), default=0.0)
        if total <= budget:
            return Period(0, least, groups, frozenset(), (), (), 1.0, total)
        if not whole:
            return None
        whole |= frozenset(DROP_ORDER) - turns
        steady = self._steady(groups, whole, loads, budget * _STEADY_PART)
        in_turns = (groups - steady) & turns
        if not in_turns:
            return None
        stall_ns = sum(ns for place, ns in self._stalls.items() if place.group in in_turns)
        length_ns = int(min(max(stall_ns / (self.settings.budget * _STALL_PART), least), longest))
        stall = stall_ns / length_ns
        duty = 1.0
        for load in loads.values():
            # duty * (hits + stall of a window that wraps) + stall + steady groups = budget
            rest = budget - _sum(load, steady) - stall
            cost = _sum(load, in_turns) + stall
            if rest <= 0.0:
                return None
            if cost > 0.0:
                duty = min(duty, rest / cost)
        if duty * length_ns < self.settings.least_window_ns:
            return None
        predicted = max(
            _sum(load, steady) + stall + duty * (_sum(load, in_turns) + stall)
            for load in loads.values()
        )
        return Period(0, length_ns, steady, in_turns, (), (), duty, predicted)

    def _steady(
        self,
        groups: frozenset[ProbeGroup],
        whole: frozenset[ProbeGroup],
        loads: Mapping[ProcessKey, Mapping[ProbeGroup, float]],
        part: float,
    ) -> frozenset[ProbeGroup]:
        worst = {group: max(load.get(group, 0.0) for load in loads.values()) for group in groups}
        kept = set(groups & whole)
        used = sum(worst[group] for group in kept & STEADY_ONLY)
        for group in sorted(groups - kept, key=lambda candidate: worst[candidate]):
            used += worst[group]
            if used > part:
                break
            kept.add(group)
        # A result without its launch says nothing.
        if ProbeGroup.LAUNCH not in kept:
            kept.discard(ProbeGroup.LAUNCH_RESULT)
        return frozenset(kept)

    def _loads(self) -> dict[ProcessKey, dict[ProbeGroup, float]]:
        loads: dict[ProcessKey, dict[ProbeGroup, float]] = {}
        for (place, process), memory in self._memory.items():
            of = loads.setdefault(process, {})
            share = max(memory.rates) * memory.cost_ns / SECOND
            of[place.group] = of.get(place.group, 0.0) + share
        return loads

    def _windows(self, now_ns: int, choice: Period) -> tuple[tuple[int, int], ...]:
        length = max(round(choice.duty * choice.end_ns), 1)
        start = self.random_below(choice.end_ns)
        end = start + length
        if end <= choice.end_ns:
            return ((now_ns + start, now_ns + end),)
        wrapped = end - choice.end_ns
        return ((now_ns, now_ns + wrapped), (now_ns + start, now_ns + choice.end_ns))


def _next_rates(
    rates: list[float], load: ProbeLoad, process: ProcessKey, least_ns: int
) -> list[float]:
    """Give a process's rates after one more period; one of less than `least_ns` tells nothing."""
    if load.attached_ns <= 0 or (rates and load.attached_ns < least_ns):
        return [rate * _FADING for rate in rates if rate * _FADING >= 1.0]
    hits = load.hits.get(process, 0)
    if not hits:
        return rates[1:]  # silent or ended
    return [*rates, hits * SECOND / load.attached_ns][-_REMEMBERED:]


def _sum(load: Mapping[ProbeGroup, float], groups: frozenset[ProbeGroup]) -> float:
    return sum(share for group, share in load.items() if group in groups)
