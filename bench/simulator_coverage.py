"""How often released intervals hold the truth: every section and series, over seeds and weeks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.released import CoarseCounts
from aggregator.statistics.ratios import coverage
from aggregator.statistics.statistics import estimate
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from bench.simulator_outcome import events
from edge_agent.windows.encode import encode_rows
from pointillist.plan_file import COUNTS_FILE, default_plan
from privacy.calibrate import WEEK_S
from privacy.indicator_bias import left_out_hosts
from privacy.plan import Plan, PlannedSection
from simulator.engine.blocks import summed_noise
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.hosts import FleetState, unpack
from simulator.outcome.attribution import DAY_S
from simulator.outcome.coverage import TOTAL, CoverageTally
from simulator.outcome.truth import cause_table, truth_cells
from simulator.scenario import Scenario, load
from simulator.streams import philox
from wire.catalogue import NO_CLASSES, Catalogue
from wire.task import Task

COMMAND: Final = "make bench-simulator ARGS='--part coverage'"
NOMINAL: Final = 95.0


@dataclass(frozen=True, slots=True)
class Lived:
    """A scenario that is lived, and of which everything that ends within it is released.

    step_s      between ticks, None: its own. Faults strike between them, so that eight weeks of
                them alone need few; jobs end and begin at them, and days need them all
    """

    scenario: str
    seed: int
    weeks: int
    step_s: int | None = None

    @property
    def name(self) -> str:
        return f"{self.scenario}_{self.seed}"


LIVED: Final = (
    *(Lived("steady", seed, 1) for seed in range(1, 6)),
    Lived("steady", 7, 8, step_s=10_800),
    Lived("faulty_month", 2, 8),
    Lived("ten_percent_load", 1, 1),
    Lived("flash_crowd", 1, 1),
)
DRAWS: Final = {"applications_seen": 2, "incidents": 20, "hardware_faults": 120}
"""Independent choices and noises of one window: its truth is what takes minutes."""
BEFORE: Final = {
    "applications_seen": (4, 0.2), "incidents": (2, 0.1), "hardware_faults": (2, 0.1),
}  # fmt: skip
"""m and weight of the plan that standard errors are compared with."""
MINUTE_HOSTS: Final = 400
MINUTES: Final = {"wide": 150, "narrow": 1_000}
NARROW_CELLS: Final = 12
MINUTE_SEEDS: Final = (1, 2, 3)
_PARTIES: Final = (b"L" * 32, b"H" * 32)


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give every figure."""
    lived = {one: kept.get(f"lived_{one.name}", partial(live, one)) for one in LIVED}
    minutes = [
        kept.get(f"minutes_{width}_{seed}", partial(play_minutes, width, seed))
        for width in MINUTES
        for seed in MINUTE_SEEDS
    ]
    causes = kept.get("causes", causes_of_eight_weeks)
    if kept.writes:
        _write_counts(lived)
    sections = _rates([*(part["cells"] for part in lived.values()), *minutes])
    figures = _figures(sections, [part["bounds"] for part in lived.values()])
    figures += [
        Figure("faults_shown", causes["faults_shown"], "faults of eight weeks, shown as numbers"),
        Figure("faults_missed", causes["faults_missed"], "faults that struck, not told from zero"),
    ]
    return Measured(figures, {"sections": sections})


# ---- days, weeks, eight weeks: the truth is lived once, and released several times ----


@dataclass(slots=True)
class _Counts:
    """What one lived scenario came to.

    cells   section -> [held, intervals, held of those in which something happened, those]
    bounds  section -> [bounds that hold what the most struck cell may lack, bounds]
    hosts   "section window_s" -> host-windows by how many indicators they have set
    """

    cells: dict[str, list[int]]
    bounds: dict[str, list[int]]
    hosts: dict[str, NDArray[np.int64]]

    def count(self, section: str, window_s: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add a window's hosts, and give them."""
        counts = np.bincount(rows.sum(axis=1), minlength=65)[:65]
        place = f"{section} {window_s}"
        self.hosts[place] = self.hosts.get(place, np.zeros(65, np.int64)) + counts
        return counts


def live(one: Lived) -> Part:
    """Live a scenario from a window's begin on, and release its indicators."""
    given = load(one.scenario)
    scenario = given.with_(
        start_s=given.start_s // (8 * WEEK_S) * 8 * WEEK_S,
        duration_s=one.weeks * WEEK_S,
        seed=one.seed,
        step_s=one.step_s or given.step_s,
    )
    catalogue = Catalogue.load()
    model = FleetModel(scenario, catalogue)
    span = scenario.start_s, scenario.end_s
    plan = events(default_plan(), 3600 if one.step_s is None else WEEK_S)
    tasks = fleet_tasks(plan, catalogue, model.inventory, span, _PARTIES)
    found = _Counts({}, {}, {})
    for task, state in _windows(model, tasks, scenario):
        _release(task, catalogue, state, one, found)
    hosts = {section: counts.tolist() for section, counts in found.hosts.items()}
    return {"cells": found.cells, "bounds": found.bounds, "hosts": hosts}


def _windows(
    model: FleetModel, tasks: list[Task], scenario: Scenario
) -> Iterator[tuple[Task, FleetState]]:
    """Give every window in the order of their ends, as the model wants them asked for."""
    due = [
        (start + task.window_s, task.window_s, start, task)
        for task in tasks
        for start in range(scenario.start_s, scenario.end_s - task.window_s + 1, task.window_s)
    ]
    for _, window_s, start, task in sorted(due, key=lambda one: one[:2]):
        yield task, model.at(start, window_s)


def _release(
    task: Task, catalogue: Catalogue, state: FleetState, one: Lived, found: _Counts
) -> None:
    (spec,) = task.sections
    section = catalogue.section(spec.name)
    rows = _set_cells(catalogue, state, spec.name)
    truth = dict(zip(section.cells, rows.sum(axis=0), strict=True))
    counts = found.count(spec.name, task.window_s, rows)
    if task.window_s == WEEK_S and one.step_s is None:  # as the plan weekly_applications asks it
        found.count("applications_seen", WEEK_S, _set_cells(catalogue, state, "applications_seen"))
    lacks = left_out_hosts(counts, spec.m)
    held = found.cells.setdefault(f"{task.series} {spec.name}", [0, 0, 0, 0])
    bounds = found.bounds.setdefault(spec.name, [0, 0])
    for draw in range(DRAWS[spec.name]):
        rng = philox(one.seed, "choice", task.series, state.start_s, draw)
        settings = EngineSettings(noise=Noise.SEEDED, seed=one.seed)
        steps = encode_rows(task, rows, rng.bytes).sum(axis=0)
        place = f"{task.series}/{draw}"
        noise = summed_noise(settings, place, state.start_s, task.sigma_vector_1024(), len(rows))
        cells = estimate(task, catalogue, steps + noise, CoarseCounts.of(task, len(rows)))
        bounds[0] += int(cells[0].bias_bound >= lacks)
        bounds[1] += 1
        for cell in cells:
            if cell.cell not in NO_CLASSES:
                inside = int(cell.low <= truth[cell.cell] <= cell.high)
                struck = int(truth[cell.cell] > 0)
                for at, more in enumerate((inside, 1, inside * struck, struck)):
                    held[at] += more


def _set_cells(catalogue: Catalogue, state: FleetState, section: str) -> NDArray[np.int64]:
    """Give int64[hosts, length], 1 where a reporting host has it; the overflow is empty."""
    words = {
        "applications_seen": state.seen,
        "incidents": state.incidents[:, None],
        "hardware_faults": state.hardware[:, None],
    }[section][state.reporting]
    of = catalogue.section(section)
    rows = np.zeros((len(words), of.length), dtype=np.int64)
    rows[:, : of.axis_cells] = unpack(words, of.axis_cells)
    return rows


# ---- minutes ----


def play_minutes(width: str, seed: int) -> Part:
    """Release minutes of a small fleet; sections of few cells for longer than the others."""
    catalogue = Catalogue.load()
    scenario = load("steady").scaled(hosts=MINUTE_HOSTS)
    scenario = scenario.with_(
        seed=seed, duration_s=60 * MINUTES[width], fidelity="noise", operators=(1.0,) * 10
    )
    plan, settings = _minute_plan(default_plan(), catalogue, width), EngineSettings(seed=seed)
    tally = CoverageTally()
    for step in Simulation(scenario, plan, catalogue, settings).steps():
        tally.add(truth_cells(step.outcome, catalogue))
    return {
        f"{one.series} {one.section}": [
            one.values.hits, one.values.trials,
            *((one.filled.hits, one.filled.trials) if one.filled else (0, 0)),
        ]
        for one in tally.result()
        if one.section != TOTAL
    }  # fmt: skip


def _minute_plan(plan: Plan, catalogue: Catalogue, width: str) -> Plan:
    """Of the shipped plan the sections of a minute that have few cells, or many."""

    def chosen(section: PlannedSection) -> bool:
        few = catalogue.section(section.name).length < NARROW_CELLS
        return few == (width == "narrow")

    (task,) = (task for task in plan.tasks if task.window_s == 60)
    sections = tuple(section for section in task.sections if chosen(section))
    return replace(plan, tasks=(replace(task, sections=sections),))


# ---- figures ----


def _rates(parts: list[Part]) -> list[dict[str, Any]]:
    """Add up, and bound each rate: every cell, and those in which something happened."""
    total: dict[str, NDArray[np.int64]] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total.get(name, np.zeros(4, np.int64)) + np.array(counts)
    rows = []
    for name, counts in total.items():
        hits, trials, struck_hits, struck = map(int, counts)
        found = coverage(hits, trials)
        rows.append(
            {
                "section": name, "percent": 100 * found.rate, "low": 100 * found.low,
                "high": 100 * found.high, "intervals": trials,
                "struck_percent": 100 * struck_hits / struck if struck else None,
                "struck": struck,
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: row["percent"])


def _figures(sections: list[dict[str, Any]], bounds: list[Part]) -> list[Figure]:
    worst, best = sections[0], sections[-1]
    least = min(section["intervals"] for section in sections)
    unit = "percent of intervals of a section and series"
    held = sum(one[0] for part in bounds for one in part.values())
    drawn = sum(one[1] for part in bounds for one in part.values())
    ratios = _error_ratios()
    each = [ratios[name] for name in ratios for _ in range(_named_cells(name))]
    return [
        Figure("interval_coverage_worst_section_percent", worst["percent"], unit, NOMINAL),
        Figure("interval_coverage_best_section_percent", best["percent"], unit, NOMINAL),
        Figure("lived_weeks", sum(one.weeks for one in LIVED), "weeks of 12,500 hosts"),
        Figure("interval_coverage_least_intervals", least, "intervals of a section"),
        Figure("bias_bound_holds_percent", 100 * held / drawn, "percent of one-sided bounds"),
        Figure("indicator_standard_error_ratio", median(each), "times, median of cells", 1.5),
        *(
            Figure(f"indicator_standard_error_ratio_{name}", ratio, "times")
            for name, ratio in ratios.items()
        ),
    ]  # fmt: skip


def _error_ratios() -> dict[str, float]:
    """Standard error of each section's counts, of those of the plan before."""
    catalogue = Catalogue.load()
    weights = {
        section.name: section.weight_millionths / 1e6
        for task in default_plan().tasks
        for section in task.sections
    }
    return {
        name: sqrt(catalogue.section(name).m / m * weight / weights[name])
        for name, (m, weight) in BEFORE.items()
    }


def _named_cells(name: str) -> int:
    catalogue = Catalogue.load()
    (axis,) = catalogue.section(name).axes
    return len(catalogue.classes(axis))


def _write_counts(lived: Mapping[Lived, Part]) -> None:
    """Write down how many indicators hosts have set, for `pointillist plan`."""
    sections: dict[str, dict[str, NDArray[np.int64]]] = {}
    for one, part in lived.items():
        for place, counts in part["hosts"].items():
            of = sections.setdefault(place, {})
            of[one.scenario] = of.get(one.scenario, np.zeros(65, np.int64)) + np.array(counts)
    document = {
        "source": f"{COMMAND}, shipped scenarios of 12,500 hosts",
        "sections": [
            {
                "section": place.split()[0],
                "window_s": int(place.split()[1]),
                "host_windows": {
                    name: np.trim_zeros(counts, "b").tolist() for name, counts in of.items()
                },
            }
            for place, of in sections.items()
        ],
    }
    COUNTS_FILE.write_text(json.dumps(document, indent=1) + "\n")


def causes_of_eight_weeks() -> Part:
    """Play `faulty_month` for eight weeks; count the faults that were shown, and missed."""
    scenario = load("faulty_month").with_(
        start_s=366 * 8 * 7 * DAY_S, duration_s=8 * 7 * DAY_S, step_s=3600, fidelity="noise"
    )
    catalogue, plan = Catalogue.load(), default_plan()
    slow = events(plan, DAY_S)
    simulation = Simulation(scenario, slow, catalogue, EngineSettings(seed=scenario.seed))
    (faults,) = [
        cause_table(truth_cells(step.outcome, catalogue), "hardware_faults")
        for step in simulation.steps()
        if step.due.series != "week"
    ]
    missed = sum(not one.told and one.true_hosts > 0 for one in faults)
    return {"faults_shown": sum(one.told for one in faults), "faults_missed": missed}
