"""`make gpu-check`, second half: what the GPU probes see beside torch.profiler, and what they cost.

Runs with the machine's own python3 and what `make gpu-kit` packed, without a network: on programs
of our own, whose launches are known, and on PyTorch where the machine has it. The profiler has a
run of its own. Where the machine refuses bpf(), symbols and names alone are checked, and no
slowdown is written. Exit code 0: as expected; 1: not; 2: could not be checked; 77: there is no GPU
here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Final, NamedTuple

from bench.record import Figure, write_result
from bench.steered import Steered
from scripts import gpu_present, gpu_programs
from scripts.gpu_present import AS_EXPECTED, DIFFERENT, KIT, NO_GPU, ROOT, UNCHECKED

LOOPS: Final = ("inference", "training", "graphs", "streams", "triton")
"""Of PyTorch."""
COSTS: Final = ("inference", "training")
COSTS_WITHOUT_TORCH: Final = ("launches",)
"""Loops whose slowdown is measured."""
STEPS: Final = 200
PAIRS, BLOCK_S = 8, 20.0
LEAST_NAMED: Final = 0.99
_ATTACHES_S: Final = 20.0
GRAPH: Final = "(graph)"
"""The name of a graph: its kernels are not launched one by one."""
_LIBRARIES: Final = ("libcudart.so", "libcuda.so")
_T95: Final = 2.365
"""Two-sided 95 % of Student's t for so many pairs."""


class Agreement(NamedTuple):
    """How two counts of launches by kernel agree.

    error  of the total, relative
    named  share of the expected launches that bear the same name on both sides
    """

    error: float
    named: float


class Slowdown(NamedTuple):
    """In percent, with half of its 95 % interval."""

    percent: float
    interval: float


def agreement(expected: Mapping[str, int], seen: Mapping[str, int]) -> Agreement:
    """Compare launches by the kernel's normalised name.

    Raises  ValueError when nothing was expected
    """
    expected, seen = _normalised(expected), _normalised(seen)
    total = sum(expected.values())
    if not total:
        raise ValueError("expected launches in the profile, got none")
    same = sum(min(count, seen.get(name, 0)) for name, count in expected.items())
    return Agreement(abs(sum(seen.values()) / total - 1.0), same / total)


def _normalised(launches: Mapping[str, int]) -> Counter[str]:
    from kernels.families import normalise

    found: Counter[str] = Counter()
    for name, count in launches.items():
        found[name if name == GRAPH else normalise(name)] += count
    return found


def slowdown(pairs: Sequence[tuple[float, float]]) -> Slowdown:
    """Give the mean slowdown over PAIRS pairs of (seconds with probes, seconds without)."""
    values = [100.0 * (with_probes / bare - 1.0) for with_probes, bare in pairs]
    spread = statistics.stdev(values) / sqrt(len(values))
    return Slowdown(statistics.mean(values), _T95 * spread)


def interleaved(
    block: Callable[[], float], probed: Callable[[], object], bare: Callable[[], object], pairs: int
) -> list[tuple[float, float]]:
    """Time blocks with probes and without, in random order within each pair."""
    found = []
    for _ in range(pairs):
        times = {}
        for on in random.sample((True, False), 2):
            (probed if on else bare)()
            times[on] = block()
        found.append((times[True], times[False]))
    bare()
    return found


class Loop(Steered):
    """A running workload; use it as a context manager."""

    def __init__(
        self, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> None:
        """Start it; `more` is added to its environment."""
        super().__init__([*command, name], os.environ | dict(more or {}))
        self.name = name
        if (said := self.answer()) != "ready":
            self.close()
            raise RuntimeError(f"{name}: expected `ready`, got {said!r}: it does not run here")

    def steps(self, number: int) -> float:
        """Make steps; give their seconds."""
        return float(self.ask(f"steps {number}"))

    def profile(self, number: int) -> Counter[str]:
        """Make steps under torch.profiler; give launches by kernel."""
        return Counter({name: count for name, (count, _) in self.times(number).items()})

    def times(self, number: int) -> dict[str, tuple[int, int]]:
        """Make steps under torch.profiler; give launches and nanoseconds by kernel."""
        told = json.loads(self.ask(f"profile {number}"))
        return {name: (count, ns) for name, (count, ns) in told.items()}

    def answered(self) -> bool:
        """Tell whether the work is done; its answer is then read."""
        return self.waits() and self.answer() is not None


class Probes:
    def __init__(self, budget: float) -> None:
        from collectors.devices.devices_source import GpuUsers
        from collectors.gpu_calls.activity_records import GpuPlaces
        from collectors.gpu_calls.governor import GovernorSettings
        from collectors.gpu_calls.gpu_probes import GpuProbesSource, ProbesSection
        from wire.catalogue import Catalogue

        self._source = GpuProbesSource(
            ProbesSection(),
            Catalogue.load(),
            GpuPlaces(1, GpuUsers()),
            governor=GovernorSettings(budget=budget),
        )

    def on(self) -> None:
        """Attach. Raises SourceUnavailable."""
        self._source.start()

    def off(self) -> None:
        self._source.stop()

    def launches(self, pid: int) -> Counter[str]:
        """Give a process's launches by kernel name since the last call."""
        parts = self._source.running
        collected, _ = parts.keeper.take(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        names = parts.kernels.name(collected)
        found: Counter[str] = Counter()
        for row in (row for one in collected for row in one.drain.launches):
            if row.process.pid == pid:
                found[names[row.process, row.kernel].kernel] += row.launches
        return found


def missing_symbols(pid: int) -> list[str]:
    """Name the runtime and driver libraries of a process in which no launch can be probed."""
    from collectors.binaries.elf_file import ElfFile
    from collectors.gpu_calls.probe_plan import PlanBook
    from collectors.gpu_calls.probe_table import ProbeTable
    from collectors.records.gpu_calls import ProbeGroup

    table, without = ProbeTable.load(), []
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    for path in {Path(line.split(maxsplit=5)[5]) for line in maps if "/" in line}:
        if path.name.startswith(_LIBRARIES):
            with path.open("rb") as file:
                plan = PlanBook(table).plan(ElfFile.read(file), path.name)
            if ProbeGroup.LAUNCH not in {one.group for one in plan.attachments}:
                without.append(str(path))
    return without


def families_known(launches: Mapping[str, int]) -> float:
    """Give the share of launches whose kernel's name belongs to a family."""
    from kernels.families import FamilyRules

    rules = FamilyRules.load()
    known = sum(n for name, n in launches.items() if rules.classify(name)[0] != "other")
    return known / max(sum(launches.values()), 1)


def refused() -> str | None:
    """Say why this machine lets nobody probe, or None."""
    from collectors.interface import SourceUnavailable

    probes = Probes(budget=0.99)
    try:
        probes.on()
    except (SourceUnavailable, OSError) as error:
        return str(error)
    probes.off()
    return None


def check_counts(loop: Loop, probes: Probes | None) -> tuple[float, float]:
    """Compare one loop with the profiler: (error of the count, share of launches named)."""
    without = missing_symbols(loop.pid)
    if without:
        print(f"gpu-probes: {loop.name}: no launch can be probed in {', '.join(without)}")
        return 1.0, 0.0
    if probes is None:
        return 0.0, families_known(loop.profile(STEPS))
    probes.launches(loop.pid)
    loop.steps(STEPS)
    seen = probes.launches(loop.pid)
    result = agreement(loop.profile(STEPS), seen)
    print(f"gpu-probes: {loop.name}: {sum(seen.values())} launches, {result}")
    return result


def figures(
    counts: Mapping[str, tuple[float, float]], costs: Mapping[str, Slowdown]
) -> list[Figure]:
    goals = {"inference": ("launch_bound", 0.5), "training": ("training", 0.1)}
    goals["launches"] = goals["inference"]
    found = []
    for loop, cost in costs.items():
        name, goal = goals[loop]
        found += [
            Figure(f"slowdown_percent_{name}", cost.percent, "%", goal),
            Figure(f"slowdown_interval_{name}", cost.interval, "+- %"),
        ]
    worst = max(error for error, _ in counts.values())
    named = min(share for _, share in counts.values())
    found.append(Figure("launch_count_error_percent", 100.0 * worst, "%", 0.0))
    found.append(Figure("launches_named_percent", 100.0 * named, "%", 100.0 * LEAST_NAMED))
    return found


def measure_cost(loop: Loop) -> Slowdown:
    """Time a loop with the agent's probes, under their governor, and without."""
    probes = Probes(budget=0.005)
    steps = max(1, round(STEPS * BLOCK_S / loop.steps(STEPS)))
    cost = slowdown(interleaved(lambda: loop.steps(steps), probes.on, probes.off, PAIRS))
    print(f"gpu-probes: {loop.name}: slower by {cost.percent:.3f} +- {cost.interval:.3f} %")
    return cost


def loops(probed: bool) -> dict[str, list[str]]:
    """Give what runs each loop that this machine can run.

    probed  launches can be counted: otherwise nothing can be said of our own programs' kernels
    """
    found = gpu_programs.commands() if probed else {}
    if importlib.util.find_spec("torch") is None:
        print(f"gpu-probes: {sys.executable} has no torch: programs of our own alone are checked")
        return found
    torch = [sys.executable, str(ROOT / "scripts" / "gpu_workload.py")]
    return found | dict.fromkeys(LOOPS, torch)


@contextmanager
def attached(probes: Probes | None, name: str, command: Sequence[str]) -> Iterator[None]:
    """Probe what a program loads before it starts: it tells a kernel's name once, at its beginning.

    Calls between mapping a file for the first time and attaching to it are missed: in a first run.
    """
    if probes is None:
        yield
        return
    probes.on()
    try:
        with Loop(name, command) as first:
            end_s = time.monotonic() + _ATTACHES_S
            while not probes.launches(first.pid) and time.monotonic() < end_s:
                first.steps(1)
                time.sleep(0.05)
        yield
    finally:
        probes.off()


def main() -> int:
    """Check, print, and write bench/results/gpu_probes.json where probes can be attached."""
    if not gpu_present.ready("gpu-probes"):
        return NO_GPU
    if importlib.util.find_spec("numpy") is None:
        print(f"gpu-probes: expected numpy in {sys.executable} or in {KIT}: make gpu-kit packs it")
        return UNCHECKED
    reason = refused()
    if reason:
        print(f"gpu-probes: {reason}: symbols and names are checked, costs are not")
    probes = None if reason else Probes(budget=0.99)
    commands = loops(probed=probes is not None)
    counts: dict[str, tuple[float, float]] = {}
    for name, command in commands.items():
        try:
            with attached(probes, name, command), Loop(name, command) as loop:
                counts[name] = check_counts(loop, probes)
        except RuntimeError as error:
            print(f"gpu-probes: not checked: {error}")
    if not counts:
        print(f"gpu-probes: no loop runs here: expected torch, or what make gpu-kit packs in {KIT}")
        return UNCHECKED
    good = all(error == 0.0 and named >= LEAST_NAMED for error, named in counts.values())
    if probes is not None:
        costs = {}
        for name in COSTS if "inference" in commands else COSTS_WITHOUT_TORCH:
            with Loop(name, commands[name]) as loop:
                costs[name] = measure_cost(loop)
        found = figures(counts, costs)
        print(f"wrote {write_result('gpu_probes', 'make gpu-check', found)}")
        gpu_present.write_found("gpu_probes", found, None, {})
    if good and len(counts) < len(commands):
        return UNCHECKED
    return AS_EXPECTED if good else DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
