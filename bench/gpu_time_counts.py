"""Launches under the governor beside the truth, in a simulation of many periods.

The host has processes that launch by a pattern; its probes, periods and estimates are the
collector's own code.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Final, NamedTuple

from bench.parts import Measured, Parts
from bench.record import Figure
from collectors.binaries.elf_file import EntryClass
from collectors.gpu_calls.activity_records import Named
from collectors.gpu_calls.call_records import CallRecords
from collectors.gpu_calls.costs import CpuClocks, HitCost, HitCosts
from collectors.gpu_calls.governor import Governor, GovernorSettings
from collectors.gpu_calls.periods import PeriodKeeper
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.readout import CallRow, LaunchRow, ProbeDrain
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import CountedCalls, FileGroup, ProbeGroup, ProcessLabels

SECOND: Final = 1_000_000_000
_STEP_NS: Final = 5_000_000
_ATTACH_NS, _DETACH_NS = 9_000_000, 32_000_000
_BEGIN_NS: Final = 60 * SECOND
_HIT: Final = HitCost(840.0, 1_600.0)
_FILE: Final = 1
_CALL: Final = "cudart.launch"
_NAMED: Final = Named("a_kernel", "gemm")
_SEEDS: Final = 30
_ENOUGH: Final = 100
"""Intervals of a pattern, of which a share says something."""
_SIMULATED_S: Final = 200.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a process launches.

    rate      launches a second while it works; 0: as fast as it can
    cpu_ns    CPU time of a launch and the work that goes with it
    on_off_s  seconds of work, then of sleep, both of random length around these; sleep 0: always
    once_s    work begins once, at this second, for on_off_s[0]; before and after it sleeps; 0: no
    drift     by which part the CPU time of a launch wanders
    """

    rate: float
    cpu_ns: float
    on_off_s: tuple[float, float] = (1.0, 0.0)
    once_s: float = 0.0
    drift: float = 0.02


@dataclass(slots=True)
class _Process:
    """One process and what it has done so far."""

    key: ProcessKey
    pattern: Pattern
    rng: random.Random
    launches: float = 0.0
    cpu_ns: float = 0.0
    works: bool = False
    change_ns: int = 0
    drift: float = 1.0
    told: int = 0

    def advance(self, now_ns: int, step_ns: int, hit_ns: float) -> None:
        """Play a step in which each launch pays so much to probes."""
        pattern = self.pattern
        if pattern.once_s:
            begin_ns = _BEGIN_NS + round(pattern.once_s * SECOND)
            self.works = begin_ns <= now_ns < begin_ns + pattern.on_off_s[0] * SECOND
        elif now_ns >= self.change_ns:
            self.works = not self.works or not pattern.on_off_s[1]
            mean_s = pattern.on_off_s[not self.works]
            self.change_ns = now_ns + round(mean_s * SECOND * self.rng.uniform(0.7, 1.3))
            self.drift = 1.0 + pattern.drift * self.rng.uniform(-1.0, 1.0)
        if not self.works:
            return
        each_ns = pattern.cpu_ns * self.drift + hit_ns
        possible = step_ns / each_ns
        done = min(pattern.rate * step_ns / SECOND, possible) if pattern.rate else possible
        self.launches += done
        self.cpu_ns += done * each_ns


class Counted(NamedTuple):
    launches: CountedCalls
    truth: int
    span_ns: int


@dataclass
class SimulatedHost:
    """A host whose processes are probed under the governor."""

    patterns: list[Pattern]
    seed: int
    cold: tuple[float, float] = (1.0, 1.4)
    """What a hit truly costs over what calibration said: between these, by process."""
    now_ns: int = _BEGIN_NS
    _attached: dict[ProbeGroup, int] = field(default_factory=dict)
    _counted: defaultdict[ProcessKey, int] = field(default_factory=lambda: defaultdict(int))
    _returned: defaultdict[ProcessKey, int] = field(default_factory=lambda: defaultdict(int))
    _spent: defaultdict[ProbeGroup, int] = field(default_factory=lambda: defaultdict(int))
    _drained_ns: int = _BEGIN_NS
    _truths: dict[int, dict[ProcessKey, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self._rng = rng
        self._costs = HitCosts(ProbeTable.load(), {EntryClass.EMULATED: _HIT}, True)
        self._processes = [
            _Process(ProcessKey(100 + n, _BEGIN_NS), pattern, random.Random(rng.random()))
            for n, pattern in enumerate(self.patterns)
        ]
        self._cold = {process.key: rng.uniform(*self.cold) for process in self._processes}
        by_key = {process.key: process for process in self._processes}
        clocks = CpuClocks(
            lambda: tuple(by_key),
            lambda key: round(by_key[key].cpu_ns),
            lambda _: True,
            lambda: self.now_ns,
        )
        self._attached = dict.fromkeys((ProbeGroup.LAUNCH, ProbeGroup.LAUNCH_RESULT), 0)
        places = {FileGroup(_FILE, group): _ATTACH_NS // 2 for group in self._attached}
        self.keeper = PeriodKeeper(
            self, Governor(GovernorSettings(), rng.randrange), self._costs, lambda: places, clocks
        )
        self.now_ns += 1
        self.keeper.start(self.now_ns)
        self._records = CallRecords(
            self._costs.table, lambda _: ProcessLabels("made"), lambda _: False
        )

    def run(self, seconds: float) -> Iterator[Counted]:
        """Play; give each record of each process that launched in it or is said to have."""
        end_ns = self.now_ns + round(seconds * SECOND)
        next_drain_ns = self.now_ns + SECOND
        while self.now_ns < end_ns:
            self.now_ns += 1
            wanted, edge_ns = self.keeper.wanted(self.now_ns)
            self.now_ns += 1
            if self.keeper.switching(wanted, self.now_ns):
                self._switch(wanted)
                self.keeper.switched(wanted, self.now_ns)
                continue
            self._play(max(min(edge_ns, next_drain_ns), self.now_ns + 1))
            if self.now_ns >= next_drain_ns:
                next_drain_ns += SECOND
                yield from self._take()

    def drain(self, now_ns: int) -> ProbeDrain:
        launches, calls, hits = [], [], {}
        for process in self._processes:
            count, back = self._counted.pop(process.key, 0), self._returned.pop(process.key, 0)
            if count:
                launches.append(LaunchRow(process.key, _FILE, 1, _CALL, count, 0, 0, 0))
                calls.append(CallRow(process.key, _FILE, _CALL, count, 0, back, 0, 0, 0))
                hits[FileGroup(_FILE, ProbeGroup.LAUNCH), process.key] = count
            if back:
                hits[FileGroup(_FILE, ProbeGroup.LAUNCH_RESULT), process.key] = back
        begun_ns, self._drained_ns = self._drained_ns, now_ns
        span_ns = max(now_ns - begun_ns, 1)
        duty = {FileGroup(_FILE, of): min(ns / span_ns, 1.0) for of, ns in self._spent.items()}
        self._spent.clear()
        self._truths[now_ns] = {p.key: int(p.launches) for p in self._processes}
        return ProbeDrain(begun_ns, span_ns, tuple(launches), tuple(calls), duty=duty, hits=hits)

    def _play(self, until_ns: int) -> None:
        cost = {group: self._costs.of(group) for group in self._attached}
        while self.now_ns < until_ns:
            step_ns = min(_STEP_NS, until_ns - self.now_ns)
            for process in self._processes:
                before = int(process.launches)
                hit_ns = sum(cost.values()) * self._cold[process.key]
                process.advance(self.now_ns, step_ns, hit_ns)
                done = int(process.launches) - before
                if ProbeGroup.LAUNCH in self._attached:
                    self._counted[process.key] += done
                if ProbeGroup.LAUNCH_RESULT in self._attached:
                    self._returned[process.key] += done
            for group in self._attached:
                self._spent[group] += step_ns
            self.now_ns += step_ns

    def _switch(self, wanted: frozenset[ProbeGroup]) -> None:
        """Places begin to count at some moment of attaching, and cease early in detaching."""
        self._play(self.now_ns + 1)
        groups = {ProbeGroup.LAUNCH, ProbeGroup.LAUNCH_RESULT} & wanted
        if self._attached.keys() - groups:
            self._play(self.now_ns + self._rng.randrange(_DETACH_NS // 8) + 1)
            self._attached = dict.fromkeys(groups & self._attached.keys(), 0)
            self._play(self.now_ns + _DETACH_NS)
        if groups - self._attached.keys():
            first_ns = self._rng.randrange(_ATTACH_NS) + 1
            self._play(self.now_ns + first_ns)
            self._attached = dict.fromkeys(groups, 0)
            self._play(self.now_ns + _ATTACH_NS - first_ns + 1)

    def _take(self) -> Iterator[Counted]:
        collected, _ = self.keeper.take(self.now_ns)
        names = {(process.key, 1): _NAMED for process in self._processes}
        for record in self._records.of(collected, names):
            begin = self._truths[record.boottime_ns]
            end = self._truths[record.boottime_ns + record.span_ns]
            told = {process.process: process.launches for process in record.processes}
            for key, after in end.items():
                truth = after - begin.get(key, 0)
                if key in told or truth:
                    yield Counted(told.get(key, CountedCalls.exactly(0)), truth, record.span_ns)


PATTERNS: Final[Mapping[str, Pattern]] = {
    "steady_1k": Pattern(1_000, 200_000),
    "steady_5k": Pattern(5_000, 20_000),
    "steady_20k": Pattern(20_000, 20_000),
    "steady_50k": Pattern(50_000, 8_000),
    "never_idle": Pattern(0, 4_000),
    "bursts_20k": Pattern(120_000, 6_000, (0.3, 1.5)),
    "bursts_3k": Pattern(20_000, 20_000, (0.3, 1.5)),
    "one_burst": Pattern(0, 112, (0.9, 0.0), once_s=31.5),
    "wandering": Pattern(20_000, 20_000, (4.0, 4.0), drift=0.5),
}


def simulated(seeds: int = _SEEDS, seconds: float = _SIMULATED_S) -> dict[str, dict[str, int]]:
    """Count by pattern how many statements hold the truth: exact ones, intervals and bounds."""
    found = {}
    for name, pattern in PATTERNS.items():
        counts = dict.fromkeys(("exact", "intervals", "bounds"), 0)
        wrong = {f"wrong_{kind}": 0 for kind in counts}
        for seed in range(seeds):
            for row in SimulatedHost([pattern], seed).run(seconds):
                kind = statement(row)
                counts[kind] += 1
                wrong[f"wrong_{kind}"] += not holds(row)
        found[name] = counts | wrong
    return found


def statement(row: Counted) -> str:
    """Tell what a record says: a number, an interval, or bounds that are none."""
    low, high = row.launches.interval
    if low == high:
        return "exact"
    return "intervals" if isfinite(row.launches.error) else "bounds"


def holds(row: Counted) -> bool:
    """Tell whether the truth lies where it is said to; a launch may lie on an edge."""
    low, high = row.launches.interval
    return low - 1.0 <= row.truth <= high + 1.0


def measure(kept: Parts) -> Measured:
    found = kept.get("simulated", lambda: simulated(kept.scaled(_SEEDS))).values()
    records = sum(of["intervals"] for of in found)
    wrong = sum(of["wrong_intervals"] for of in found)
    enough = [of for of in found if of["intervals"] >= _ENOUGH]
    shares = [100.0 * (1.0 - of["wrong_intervals"] / of["intervals"]) for of in enough]
    worst, of_worst = min(shares, default=nan), "% of the worst pattern"
    return Measured([
        Figure("launch_count_coverage_percent", 100.0 * (1.0 - wrong / records), "%", 95.0),
        Figure("launch_count_coverage_worst_percent", worst, of_worst, 95.0),
        Figure("launch_count_intervals", float(records), "simulated"),
    ])  # fmt: skip
