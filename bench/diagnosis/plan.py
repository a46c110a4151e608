"""The run plan: which fault on which workload at which intensity, in an order that may be cut off.

Every prefix is as balanced as it can be: each round covers every cause before the next begins.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.diagnosis.faults.fault import GROWING, Graded
from bench.diagnosis.faults.registry import INJECTORS, NAMED, NEGATIVES, UNNAMED
from bench.diagnosis.workload import GLOO, INFERENCE, LOADER, STEP_LOOP

INTENSITIES: Final = ("low", "middle", "high", "growing")
LOW, MIDDLE, HIGH = range(3)

FIRST: Final = tuple(kind.injector for kind in NAMED[::2])
SECOND: Final = tuple(kind.injector for kind in NAMED[1::2])
GROWS: Final = tuple(kind.injector for kind in NAMED if issubclass(kind, Graded))
PAIRS: Final = (
    ("stress_cpu", "random_readers"),
    ("low_quota", "low_rate"),
    ("low_limit", "slow_store"),
    ("loss", "bursty_hashing"),
    ("slow_peer", "stress_hdd"),
    ("bulk_streams", "heavy_decode"),
)
OTHERS: Final = {
    GLOO: ("stress_cpu", "low_quota", "stress_vm", "random_readers", "datagrams", "low_rate",
           "slow_peer", "slow_store"),
    LOADER: ("bursty_hashing", "stress_sidecar", "low_limit", "stress_hdd", "heavy_decode"),
    INFERENCE: ("bursty_hashing", "low_quota", "stress_vm", "stress_hdd", "bulk_streams", "loss"),
}  # fmt: skip
"""What else than the step loop meets: middle intensity, one injector of each cause that can."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recording.

    injectors   none: fault-free; two: they overlap, the second begins `stagger_s` later
    workers     workloads beside one another, each on a CPU of its own
    """

    workload: str
    injectors: tuple[str, ...]
    intensity: int
    seed: int
    before_s: float = 16.0
    fault_s: float = 21.0
    after_s: float = 10.0
    workers: int = 1
    stagger_s: float = 5.0

    @property
    def name(self) -> str:
        what = "+".join(self.injectors) or "nothing"
        level = INTENSITIES[self.intensity] if self.injectors else "quiet"
        workers = f"-x{self.workers}" if self.workers > 1 else ""
        return f"{self.workload}-{what}-{level}{workers}-{self.seed}"

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(INJECTORS[injector].cause for injector in self.injectors)

    @property
    def seconds(self) -> float:
        return self.before_s + self.fault_s + self.after_s


def quiet(seed: int, minutes: float, workload: str = STEP_LOOP, workers: int = 2) -> Run:
    return Run(workload, (), MIDDLE, seed, minutes * 60, 0.0, 0.0, workers)


def _series(
    injectors: Sequence[str], intensity: int, seed: int, workload: str = STEP_LOOP
) -> list[Run]:
    runs = [Run(workload, (injector,), intensity, seed) for injector in injectors]
    random.Random(f"{workload} {intensity} {seed}").shuffle(runs)
    return runs


def _round(seed: int) -> Iterator[Run]:
    """Every run of the plan once, with one seed."""
    unnamed = [kind.injector for kind in UNNAMED]
    negatives = [kind.injector for kind in NEGATIVES]
    yield from _series(FIRST, MIDDLE, seed)
    yield from _series(SECOND, MIDDLE, seed)
    yield from _series((*unnamed, *negatives), MIDDLE, seed)
    yield quiet(seed, 5)
    yield from _series(FIRST, HIGH, seed)
    yield from _series(SECOND, HIGH, seed)
    for workload, injectors in OTHERS.items():
        yield from _series(injectors, MIDDLE, seed, workload)
    yield from _series(FIRST, LOW, seed)
    yield from _series(SECOND, LOW, seed)
    for injector in GROWS:
        yield Run(STEP_LOOP, (injector,), GROWING, seed, fault_s=50.0)
    for pair in PAIRS:
        yield Run(STEP_LOOP, pair, MIDDLE, seed)
    for intensity in (HIGH, LOW):
        yield from _series((*unnamed, *negatives), intensity, seed)
    for workload in OTHERS:
        yield from _series(("process_stops", "writeback"), MIDDLE, seed, workload)
        yield quiet(seed, 5, workload, workers=1)
    yield quiet(seed + 50, 10)


def plan(rounds: int = 3, first_seed: int = 1) -> list[Run]:
    """Return the runs in their order: round after round, each with its seed."""
    seeds = range(first_seed, first_seed + rounds)
    return list(itertools.chain.from_iterable(_round(seed) for seed in seeds))
