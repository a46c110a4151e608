"""What a simulated window costs: by fidelity, by stage beside its floor, by size of the fleet."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import numpy as np

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from bench.round_work import floor
from pointillist.plan_file import default_plan
from privacy.noise_table import TableSampler
from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.engine.engine_port import BLOCK_HOSTS, EngineSettings, WindowOutcome
from simulator.engine.exact import ExactEngine
from simulator.engine.exact_parties import ExactParties
from simulator.engine.masked import MaskedEngine
from simulator.engine.noise_engine import NoiseEngine
from simulator.engine.randomness import OsStream
from simulator.engine.task_rules import fleet_tasks, merged
from simulator.fleet import FleetModel, FleetRows
from simulator.scenario import load
from wire.catalogue import Catalogue
from wire.task import Task

SCENARIO: Final = "steady"
GPUS_PER_HOST: Final = 8
WINDOW_S: Final = 60
PROCESSES: Final = 2
HOSTS: Final = 12_500
SMALL: Final = 125
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
    """Weights of the shipped plan's minute task."""
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
    processes: int = PROCESSES,
    weights: Mapping[str, int] = WEIGHTS,
    block: int = BLOCK_HOSTS,
) -> Part:
    """Play windows of a fleet: seconds of the first, and of the others.

    The first opens the hour's epochs and builds tables. CPU seconds are those of all processes, and
    the mean of the others: who is interrupted in a stage has its share of that window wrong. Wall
    seconds are the median.
    """
    catalogue, scenario = Catalogue.load(), load(SCENARIO).scaled(hosts=hosts)
    settings = EngineSettings(processes=processes, block_hosts=block)
    model = FleetModel(scenario, catalogue)
    span = scenario.start_s, scenario.start_s + windows * WINDOW_S
    parties = ExactParties()
    (task,) = fleet_tasks(make_plan(weights), catalogue, model.inventory, span, parties.public_keys)
    rows = FleetRows(catalogue, task, model.applications)
    played: list[tuple[float, WindowOutcome]] = []
    load_average = os.getloadavg()[0]
    began = time.perf_counter()
    with closing(_engine(fidelity, parties, task, model, span, settings)) as engine:
        setup_s = time.perf_counter() - began
        for start in range(*span, WINDOW_S):
            began = time.perf_counter()
            state = model.at(start, WINDOW_S)
            outcome = engine.window(task, start, state, rows)
            played.append((time.perf_counter() - began, outcome))
            n = int(state.reporting.sum())
            assert outcome.n == n, f"expected {n} accepted hosts, got {outcome.n}"
        peak = sum(engine.peak_bytes())
    rest = played[1:] or played
    together = merged([outcome.stage_s for _, outcome in rest])
    return {
        "hosts": hosts,
        "d": task.d,
        "load_average": load_average,
        "setup_s": setup_s,
        "first_wall_s": played[0][0],
        "wall_s": statistics.median(wall for wall, _ in rest),
        "first_stages": dict(played[0][1].stage_s),
        "stages": {stage: seconds / len(rest) for stage, seconds in together.items()},
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


def floors(hosts: int) -> Part:
    """CPU seconds of the least that a window's noise, and its masks and sums, can cost.

    noise   the table sampler over the fast stream, a block of hosts at a time
    masks   AES under a fresh key per host, once, and two sums modulo 2^32: see bench.round_work
    """
    catalogue, scenario = Catalogue.load(), load(SCENARIO).scaled(hosts=hosts)
    inventory = FleetModel(scenario, catalogue).inventory
    span = scenario.start_s, scenario.start_s + WINDOW_S
    (task,) = fleet_tasks(
        make_plan(WEIGHTS), catalogue, inventory, span, ExactParties().public_keys
    )
    sampler, sigma = TableSampler(OsStream()), task.sigma_vector_1024()
    sampler.sample(BLOCK_HOSTS, sigma)
    return {
        "noise": statistics.median(_sampled(sampler, hosts, sigma) for _ in range(3)),
        "masks": statistics.median(floor(hosts, task.d) for _ in range(3)),
    }


def _sampled(sampler: TableSampler, hosts: int, sigma: np.typing.NDArray[np.int64]) -> float:
    began = time.process_time_ns()
    for start in range(0, hosts, BLOCK_HOSTS):
        sampler.sample(min(BLOCK_HOSTS, hosts - start), sigma)
    return (time.process_time_ns() - began) / 1e9


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give the figures of the engine."""
    parts = {
        "floors": kept.get("floors", lambda: floors(HOSTS)),
        "masked_1k": kept.get("masked_1k", lambda: play("masked", SMALL, 60, processes=1)),
        "exact_1k": kept.get("exact_1k", lambda: play("exact", SMALL, 30, processes=1)),
        "masked": kept.get("masked", lambda: play("masked", HOSTS, 12)),
        "exact": kept.get("exact", lambda: play("exact", HOSTS, 8)),
        "noise": kept.get("noise", lambda: play("noise", HOSTS, 6)),
        "masked_1k_again": kept.get(
            "masked_1k_again", lambda: play("masked", SMALL, 60, processes=1)
        ),
        "exact_1k_again": kept.get("exact_1k_again", lambda: play("exact", SMALL, 30, processes=1)),
        "masked_shipped": kept.get(
            "masked_shipped", lambda: play("masked", HOSTS, 6, weights=shipped_minute())
        ),
        "masked_1m": kept.get("masked_1m", lambda: play("masked", MANY, 2)),
        "exact_1m": kept.get("exact_1m", lambda: play("exact", MANY, 1, block=MANY_BLOCK)),
    }
    return Measured(figures(parts))


def figures(parts: Mapping[str, Part]) -> list[Figure]:
    """What the parts say, the named figures first."""
    masked, exact = parts["masked"], parts["exact"]
    growth = {name: _growth(parts, name) for name in ("masked", "exact")}
    hundred = [part for part in parts.values() if part.get("hosts") == HOSTS]
    found = [
        Figure("masked_times_real_time_100k", WINDOW_S / _minute(masked), "x real time", 60),
        Figure("exact_times_real_time_100k", WINDOW_S / _minute(exact), "x real time", 1),
        Figure("peak_memory_gib", max(part["peak_gib"] for part in hundred), "GiB", 8),
        Figure("cost_growth_1k_to_100k", max(growth.values()), "ratio", 1.15),
        *(Figure(f"cost_growth_{name}", ratio, "ratio", 1.15) for name, ratio in growth.items()),
        *(
            Figure(
                f"{name}_times_real_time_100k_by_cpu",
                WINDOW_S / _quiet(parts[name]),
                "x real time, were CPU seconds all and two cores idle",
            )
            for name in ("masked", "exact")
        ),
        *(
            Figure(f"{name}_load_average", parts[name]["load_average"], "processes, at its start")
            for name in ("masked", "exact")
        ),
        Figure("d", masked["d"], "words"),
        Figure("noise_times_real_time_100k", WINDOW_S / _minute(parts["noise"]), "x real time"),
        Figure(
            "masked_times_real_time_100k_shipped_minute",
            WINDOW_S / _minute(parts["masked_shipped"]),
            f"x real time at d = {parts['masked_shipped']['d']:,}",
        ),
    ]
    for name in ("masked", "exact"):
        many = parts[f"{name}_1m"]
        found += [
            Figure(f"{name}_window_s_1m", many["first_wall_s"], "s, one window, first one"),
            Figure(f"{name}_setup_s_1m", many["setup_s"], "s"),
            Figure(f"{name}_peak_memory_gib_1m", many["peak_gib"], "GiB"),
        ]
    return found + _stages(parts)


def _minute(part: Part) -> float:
    """Wall seconds of a window, with its share of what an hour's first one costs more."""
    extra: float = max(0.0, part["first_wall_s"] - part["wall_s"]) / EPOCH_WINDOWS
    return float(part["wall_s"]) + extra


def _quiet(part: Part) -> float:
    """Wall seconds of a window on two cores that do nothing else, at best: its CPU seconds over 2.

    What an hour's first window costs more, epochs and tables, is spread over the hour.
    """
    usual, first = sum(part["stages"].values()), sum(part["first_stages"].values())
    return float(usual + max(0.0, first - usual) / EPOCH_WINDOWS) / PROCESSES


def _core_s(part: Part) -> float:
    """CPU seconds of a window per host, epochs shared by the windows of their hour.

    Noise is left out: the hosts of a small fleet each draw a wider one, which costs more.
    """
    epochs = sum(s for stage, s in part["first_stages"].items() if _of_epochs(stage))
    rest = sum(s for stage, s in part["stages"].items() if not _other(stage))
    return float(rest + epochs / EPOCH_WINDOWS) / int(part["hosts"])


def _other(stage: str) -> bool:
    return _of_epochs(stage) or stage.rpartition(".")[2] == "noise"


def _of_epochs(stage: str) -> bool:
    return stage.endswith((".epochs", "derive_keys"))


def _growth(parts: Mapping[str, Part], name: str) -> float:
    # A shared machine's speed drifts: the small fleet is measured on both sides of the large one.
    small = [_core_s(parts[f"{name}_1k"]), _core_s(parts[f"{name}_1k_again"])]
    return _core_s(parts[name]) / statistics.mean(small)


def _stages(parts: Mapping[str, Part]) -> list[Figure]:
    noise, masks = parts["floors"]["noise"], parts["floors"]["masks"]
    least = {"noise": noise, "agent.noise": noise, "host.mask": masks, "helper.mask": masks}
    found = []
    for name in ("masked", "exact"):
        stages: dict[str, Any] = parts[name]["stages"]
        for stage, seconds in sorted(stages.items()):
            label = f"{name}_{stage.replace('.', '_')}_s_100k"
            found.append(Figure(label, seconds, "core-s", None, least.get(stage)))
        found.append(Figure(f"{name}_core_s_100k", sum(stages.values()), "core-s"))
        found.append(
            Figure(
                f"{name}_hour_first_core_s_100k",
                sum(merged([parts[name]["first_stages"]]).values()),
                "core-s, epochs and tables",
            )
        )
    return found
