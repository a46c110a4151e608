"""What a simulated window costs: by fidelity, and by size of the fleet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan
from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.engine.exact import ExactEngine, ExactParties
from simulator.engine.fast import MaskedEngine, NoiseEngine
from simulator.engine.interface import BLOCK_HOSTS, EngineSettings
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.fleet_rows import FleetRows
from simulator.scenario import load
from wire.catalogue import Catalogue
from wire.task import Task

SCENARIO: Final = "steady"
WINDOW_S: Final = 60
PROCESSES: Final = 2
HOSTS: Final = 12_500
MANY: Final = 125_000
MANY_BLOCK: Final = 4096
"""Every block reads the whole roster: at a million GPUs larger ones start sooner."""

EPOCH_WINDOWS: Final = 60
"""Windows of a minute that share one epoch."""

WEIGHTS: Final[Mapping[str, int]] = {
    "kernel_mix": 200_000,
    "application_mix": 100_000,
    "kernel_duration": 40_000,
    "gpu_utilisation": 40_000,
    "gpu_power": 30_000,
    "copy_size": 20_000,
    "gpu_memory": 20_000,
    "gpu_temperature": 10_000,
    "host_cpu": 10_000,
    "host_memory": 10_000,
    "host_disk": 10_000,
    "host_network": 10_000,
    "applications_seen": 200_000,
    "incidents": 100_000,
    "hardware_faults": 100_000,
}
"""Most sections of the catalogue but the mix by model, in windows of a minute: d = 942."""


def shipped_minute() -> dict[str, int]:
    (task,) = [one for one in default_plan().tasks if one.series == "minute"]
    return {one.name: one.weight_millionths for one in task.sections}


def make_plan(weights: Mapping[str, int]) -> Plan:
    """One task of these sections, for 12,500 hosts or any other number."""
    sections = tuple(PlannedSection(name, weight) for name, weight in weights.items())
    task = PlannedTask("minute", WINDOW_S, 30, 21_600, sections)
    return Plan("bench", "masked", 2_000_000, 1_000, 12_500, 10_000, 1_250, 3, (task,))


def play(
    fidelity: str,
    hosts: int,
    windows: int,
    *,
    weights: Mapping[str, int] = WEIGHTS,
    block: int = BLOCK_HOSTS,
) -> Part:
    """Play windows of a fleet: seconds of the first, and of the others.

    The first opens the hour's epochs and builds tables; of the others it is the median.
    """
    catalogue, scenario = Catalogue.load(), load(SCENARIO).scaled(hosts=hosts)
    settings = EngineSettings(processes=PROCESSES, block_hosts=block)
    model = FleetModel(scenario, catalogue)
    span = scenario.start_s, scenario.start_s + windows * WINDOW_S
    parties = ExactParties()
    (task,) = fleet_tasks(make_plan(weights), catalogue, model.inventory, span, parties.public_keys)
    rows = FleetRows(catalogue, task, model.applications)
    played: list[float] = []
    with closing(_engine(fidelity, parties, task, model, span, settings)) as engine:
        for start in range(*span, WINDOW_S):
            began = time.perf_counter()
            state = model.at(start, WINDOW_S)
            outcome = engine.window(task, start, state, rows)
            played.append(time.perf_counter() - began)
            n = int(state.reporting.sum())
            assert outcome.n == n, f"expected {n} accepted hosts, got {outcome.n}"
        peak = sum(engine.peak_bytes())
    return {
        "hosts": hosts,
        "d": task.d,
        "first_wall_s": played[0],
        "wall_s": statistics.median(played[1:] or played),
        "peak_gib": peak / 2**30,
    }


def _engine(
    fidelity: str,
    parties: ExactParties,
    task: Task,
    model: FleetModel,
    span: tuple[int, int],
    settings: EngineSettings,
) -> ExactEngine | MaskedEngine | NoiseEngine:
    inventory = model.inventory
    if fidelity == "exact":
        return ExactEngine(parties, [task], inventory, span, settings)
    return (MaskedEngine if fidelity == "masked" else NoiseEngine)(inventory, settings)


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give the figures of the engine."""
    hosts, many, shipped = kept.scaled(HOSTS), kept.scaled(MANY), shipped_minute()
    of = {
        "masked": partial(play, "masked", hosts, 12),
        "exact": partial(play, "exact", hosts, 8),
        "noise": partial(play, "noise", hosts, 6),
        "masked_shipped": partial(play, "masked", hosts, 6, weights=shipped),
        "masked_1m": partial(play, "masked", many, 2),
        "exact_1m": partial(play, "exact", many, 1, block=MANY_BLOCK),
    }
    return Measured(figures({name: kept.get(name, part) for name, part in of.items()}))


def figures(parts: Mapping[str, Part]) -> list[Figure]:
    minutes = {name: WINDOW_S / _minute(part) for name, part in parts.items()}
    peak = max(part["peak_gib"] for name, part in parts.items() if not name.endswith("1m"))
    unit, d = "x real time", parts["masked_shipped"]["d"]
    named = "masked_times_real_time_100k"
    found = [
        Figure(named, minutes["masked"], unit, 60),
        Figure("exact_times_real_time_100k", minutes["exact"], unit, 1),
        Figure("peak_memory_gib", peak, "GiB", 8),
        Figure("d", parts["masked"]["d"], "words"),
        Figure("noise_times_real_time_100k", minutes["noise"], unit),
        Figure(f"{named}_shipped_minute", minutes["masked_shipped"], f"{unit} at d = {d:,}"),
    ]
    for name in ("masked", "exact"):
        many = parts[f"{name}_1m"]
        found += [
            Figure(f"{name}_window_s_1m", many["first_wall_s"], "s, one window, first one"),
            Figure(f"{name}_peak_memory_gib_1m", many["peak_gib"], "GiB"),
        ]
    return found


def _minute(part: Part) -> float:
    """Wall seconds of a window, with its share of what an hour's first one costs more."""
    extra: float = max(0.0, part["first_wall_s"] - part["wall_s"]) / EPOCH_WINDOWS
    return float(part["wall_s"]) + extra
