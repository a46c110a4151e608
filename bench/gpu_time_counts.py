"""Launches under the governor beside the truth: a simulation of many periods, and real probes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.probes_agent import Agent
from bench.probes_governed import estimated, launched
from bench.probes_target import Slices, Target, build, copy_library
from bench.record import CACHE, Figure
from bench.simulated_launches import Counted, Pattern, SimulatedHost

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
_SEEDS: Final = 30
_ENOUGH: Final = 100
"""Intervals of a pattern, of which a share says something."""
_SIMULATED_S: Final = 200.0
_RATES: Final = (5_000, 20_000, 50_000)
_REAL_S: Final = 30.0
_BURST_MS: Final = (300, 1_500)
_LONGEST_PERIOD_S: Final = 16.0
_NO_INTERVAL: Final = 1e18
_SLICE_LAUNCHES: Final = 0.008
"""Seconds of a pair of slices: their launches may lie on either side of a record's edge."""


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


def real(folder: Path) -> dict[str, Any]:
    """Run a process at each rate, steadily and in bursts, under real probes."""
    runs: dict[str, Any] = {f"{rate}": _run(folder, rate, (0, 0)) for rate in _RATES}
    runs["bursts_20000"] = _run(folder, 20_000, _BURST_MS)
    return runs


def measure(kept: Parts) -> Measured:
    """Simulate, then run processes under real probes; as root."""
    folder = CACHE / "probes" / "build"
    build(folder)
    made_up = kept.get("simulated", lambda: simulated(kept.scaled(_SEEDS)))
    seen = kept.get("real", lambda: real(folder))
    return Measured(figures(made_up, seen))


def figures(made_up: Part, real: Part) -> list[Figure]:
    """Give the coverage of intervals, simulated and real, and the error at 20,000 a second."""
    simulated_ones = made_up.values()
    records = sum(of["intervals"] for of in simulated_ones)
    wrong = sum(of["wrong_intervals"] for of in simulated_ones)
    worst = min(
        100.0 * (1.0 - of["wrong_intervals"] / of["intervals"])
        for of in simulated_ones
        if of["intervals"] >= _ENOUGH
    )
    others = sum(of["exact"] + of["bounds"] for of in simulated_ones)
    other_wrong = sum(of["wrong_exact"] + of["wrong_bounds"] for of in simulated_ones)
    rows = [row for run in real.values() for row in run["records"]]
    intervals = [row for row in rows if row["low"] < row["high"] and row["error"] < _NO_INTERVAL]
    held = sum(_lies_within(row) for row in intervals)
    errors = {name: run["error_percent"] for name, run in real.items()}
    error = abs(errors.pop("20000"))
    return [
        Figure("launch_count_coverage_percent", 100.0 * (1.0 - wrong / records), "%", 95.0),
        Figure("launch_count_coverage_worst_percent", worst, "% of the worst pattern", 95.0),
        Figure("launch_count_intervals", float(records), "simulated"),
        Figure("launch_count_exact_and_bounds", float(others), "simulated"),
        Figure("launch_count_exact_and_bounds_wrong", float(other_wrong), "simulated"),
        Figure("launch_count_coverage_real_percent", 100.0 * held / max(len(intervals), 1), "%"),
        Figure("launch_count_intervals_real", float(len(intervals)), "real"),
        Figure("launch_error_percent_20k_30s", error, "%", 5.0),
        *(Figure(f"launch_error_percent_{name}_30s", each, "%") for name, each in errors.items()),
    ]


def _lies_within(row: Mapping[str, Any]) -> bool:
    """Of a slice at the edge of a record only a part is known, evenly divided."""
    edge = _SLICE_LAUNCHES * row["truth"] / max(row["span_ns"] / 1e9, 0.1)
    return bool(row["low"] - edge - 1.0 <= row["truth"] <= row["high"] + edge + 1.0)


def _run(folder: Path, rate: float, burst_ms: tuple[int, int]) -> dict[str, Any]:
    library = copy_library(folder, "push", "counts").resolve()
    bare = copy_library(folder, "push", "bare").resolve()
    with Target(folder, [library, bare]) as target, Agent(library, free=False) as agent:
        target.begin_pace(0, 1, rate, _REAL_S, burst_ms)
        slices = target.end_pace()
        time.sleep(_LONGEST_PERIOD_S)  # a record comes when its period ends
        return compared(slices, estimated(agent.end(), target.pid))


def compared(slices: list[Slices], records: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare records of a process with its slices: by record, and all together."""
    rows = []
    for record in records:
        truth = launched(slices, record["begin_ns"], record["begin_ns"] + record["span_ns"])
        rows.append(record | {"truth": truth})
    truth = sum(row["truth"] for row in rows)
    value = sum(row["value"] for row in rows)
    return {"records": rows, "launches": truth, "error_percent": 100.0 * (value / truth - 1.0)}
