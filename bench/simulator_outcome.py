"""What a simulated fleet would see: intervals, causes, applications and until when, attribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import sqrt
from typing import Any, Final

from bench.record import CACHE, RESULTS, Figure
from bench.round import Part, Parts
from pointillist.plan_file import default_plan
from privacy.plan import Plan
from simulator.applications import Application, load_applications
from simulator.engine.port import EngineSettings
from simulator.engine.run import Simulation
from simulator.engine.tasks import fleet_tasks
from simulator.fleet import FleetModel
from simulator.outcome import CoverageTally, TruthWriter, cause_table, truth_cells
from simulator.outcome.attribution import attribute, attribute_released
from simulator.outcome.rows import write_rows
from simulator.outcome.runs import DAY_S, DayRuns, live_days
from simulator.outcome.seen import Design, Sampling, SeenCurve, seen_curve
from simulator.outcome.slowdown import measured_slowdown
from simulator.scenario import Applications, Jobs, Scenario, load
from wire.catalogue import Catalogue

FOLDER: Final = CACHE / "simulator" / "outcome"
"""Parquet of every table, for the report."""

COVERAGE_HOSTS, COVERAGE_WINDOWS = 1_500, 40
ANCHOR: Final = "ten_percent_load"
ANCHOR_APPLICATIONS: Final = 84
APPLICATIONS: Final = (25, 84, 250)
RATES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
LIVED_DAYS: Final = 3
DRAWS: Final = 10
LONGEST_DAYS: Final = 30
"""Lived days are repeated up to here, for what takes longer: the load is stationary."""

POPULATIONS: Final = (
    ("seren", "seren"), ("pai", "pai"), ("kalos", "kalos"), ("helios", "helios"),
    ("philly", "philly"), ("kalos", "alibaba_2023"),
)  # fmt: skip
OPTIONS: Final = tuple((m, w) for m in (2, 4) for w in (0.1, 0.2, 0.3, 0.4))
SHIPPED_WEIGHT: Final = 0.2
SIZES: Final = (1, 8, 64, 512, 4096)


def measure(kept: Parts) -> list[Figure]:
    """Measure what is missing; give every figure."""
    held = kept.get("coverage", coverage)
    causes = kept.get("causes", causes_of_eight_weeks)
    curves = {count: kept.get(f"seen_{count}", partial(seen, count)) for count in APPLICATIONS}
    people = {
        names: kept.get(f"seen_{'_'.join(names)}", partial(population, *names))
        for names in POPULATIONS
    }
    right = kept.get("attribution", attribution)
    figures = [
        Figure("interval_coverage_percent", held["percent"], "percent of intervals", 95.0),
        Figure("interval_coverage_percent_low", held["low"], "percent, 99 % binomial bound"),
        Figure("interval_coverage_percent_high", held["high"], "percent, 99 % binomial bound"),
    ]
    figures += _causes(causes)
    for count, part in curves.items():
        figures += _seen_figures(count, part)
    figures += _slowdowns(curves[ANCHOR_APPLICATIONS])
    for names, part in people.items():
        name = f"hours_to_99_percent_applications_{'_'.join(names)}"
        if part["hours"] is not None:
            figures.append(Figure(name, part["hours"], "h, same plan, jobs of this population"))
    figures += [Figure(name, value, "share of GPU time") for name, value in right.items()]
    return figures


def coverage() -> Part:
    """Release minutes of a fleet through real encoding, noise and masks; count intervals."""
    scenario = load("steady").scaled(hosts=COVERAGE_HOSTS)
    scenario = scenario.with_(
        duration_s=60 * COVERAGE_WINDOWS, fidelity="masked", operators=(1.0,) * 10
    )
    catalogue, tally = Catalogue.load(), CoverageTally()
    simulation = Simulation(scenario, default_plan(), catalogue, EngineSettings(seed=scenario.seed))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TruthWriter(FOLDER / "truth.parquet", catalogue) as writer:
        for step in simulation.steps():
            tally.add(writer.add(step.outcome))
    found = tally.result()
    write_rows(FOLDER / "coverage.parquet", found)
    total = found[0].values
    return {
        "percent": 100 * total.rate,
        "low": 100 * total.low,
        "high": 100 * total.high,
        "trials": total.trials,
    }


def causes_of_eight_weeks() -> Part:
    """Weekly causes and the faults of eight weeks, beside what was injected."""
    scenario = load("faulty_month").with_(
        start_s=366 * 8 * 7 * DAY_S, duration_s=8 * 7 * DAY_S, step_s=3600, fidelity="noise"
    )
    catalogue, plan = Catalogue.load(), default_plan()
    slow = replace(plan, tasks=tuple(one for one in plan.tasks if one.window_s > DAY_S))
    simulation = Simulation(scenario, slow, catalogue, EngineSettings(seed=scenario.seed))
    tables = []
    for step in simulation.steps():
        section = "incidents" if step.due.series == "week" else "hardware_faults"
        tables.append(cause_table(truth_cells(step.outcome, catalogue), section))
    write_rows(FOLDER / "causes.parquet", tables)
    weekly = [one for one in tables if one.section == "incidents"]
    (faults,) = [one for one in tables if one.section == "hardware_faults"]
    return {
        "weeks": len(weekly),
        "causes_shown": sum(len(one.shown) for one in weekly) / len(weekly),
        "causes_missed": sum(one.missed for one in weekly) / len(weekly),
        "causes_false": sum(one.false for one in weekly) / len(weekly),
        "faults_shown": len(faults.shown),
        "faults_missed": faults.missed,
        "faults_false": faults.false,
    }


def _causes(part: Part) -> list[Figure]:
    units = {
        "causes_shown": "causes a week, shown as numbers",
        "causes_missed": "causes a week that struck somebody and are below noise",
        "causes_false": "causes a week that are shown and struck nobody",
        "faults_shown": "hardware faults in eight weeks, shown as numbers",
        "faults_missed": "hardware faults that struck somebody and are below noise",
        "faults_false": "hardware faults that are shown and struck nobody",
    }
    return [Figure(name, part[name], unit) for name, unit in units.items()]


def anchor(count: int, sizes: str | None = None, durations: str | None = None) -> Scenario:
    """100,000 GPUs of which one in ten is busy, with so many equal applications."""
    scenario = load(ANCHOR).with_(applications=Applications(numbered=count))
    if sizes is None or durations is None:
        return scenario
    return scenario.with_(jobs=Jobs(sizes=sizes, durations=durations))


def shipped_design(scenario: Scenario, plan: Plan) -> Design:
    """Noise of the shipped plan for a scenario's fleet."""
    catalogue = Catalogue.load()
    span = scenario.start_s, scenario.start_s + 2 * DAY_S
    inventory = FleetModel(scenario, catalogue).inventory
    return Design.of(fleet_tasks(plan, catalogue, inventory, span, (b"L" * 32, b"H" * 32)))


def lived(scenario: Scenario, days: int, window_s: int = 60) -> tuple[DayRuns, ...]:
    """Live the days of a fleet once."""
    catalogue = Catalogue.load()
    return tuple(live_days(FleetModel(scenario, catalogue), catalogue, days, window_s))


def repeated(days: Sequence[DayRuns], count: int) -> list[DayRuns]:
    """So many days, the lived ones over and over."""
    return [days[day % len(days)] for day in range(count)]


def seen(count: int) -> Part:
    """The anchor's curves: by sampling rate of windows and of hosts, and by the share alone."""
    scenario, plan = anchor(count), default_plan()
    design, days = shipped_design(scenario, plan), lived(scenario, LIVED_DAYS)
    long = repeated(days, LONGEST_DAYS)
    curves = [
        seen_curve(long[:6], design, rate, sampling, DRAWS)
        for sampling in Sampling
        for rate in RATES
    ]
    alone = seen_curve(long, replace(design, indicator_sigma=None), draws=3)
    write_rows(FOLDER / f"seen_{count}.parquet", [*curves, alone])
    return {
        "busy_share": sum(day.busy_share for day in days) / len(days),
        "curves": [_short(one) for one in curves],
        "mix_alone_hours": alone.hours_to_99,
        "mix_alone_share": alone.share[-1],
    }


def population(sizes: str, durations: str) -> Part:
    """The same hours for jobs of another cluster, and what other weights and m would give."""
    scenario = anchor(ANCHOR_APPLICATIONS, sizes, durations)
    design, days = shipped_design(scenario, default_plan()), lived(scenario, LIVED_DAYS, 3600)
    long = repeated(days, 10)
    options = []
    for m, weight in OPTIONS:
        sigma = (design.indicator_sigma or 0.0) * sqrt(m / design.m * SHIPPED_WEIGHT / weight)
        curve = seen_curve(long, Design(m, sigma, design.share_sigma), draws=DRAWS)
        rest = sqrt((1 - SHIPPED_WEIGHT) / (1 - weight))
        options.append({"m": m, "weight": weight, "rest_error": rest, **_short(curve)})
    (ours,) = [o for o in options if (o["m"], o["weight"]) == (design.m, SHIPPED_WEIGHT)]
    return {"hours": ours["hours_to_99"], "hosts_a_day": ours["hosts_a_day"], "options": options}


def _short(curve: SeenCurve) -> dict[str, Any]:
    return {k: v for k, v in asdict(curve).items() if k not in {"hours", "share"}}


def _seen_figures(count: int, part: Part) -> list[Figure]:
    full = part["curves"][0]
    name = "hours_to_99_percent_applications"
    mine = name if count == ANCHOR_APPLICATIONS else f"{name}_of_{count}"
    unit = f"h, {count} applications, end of the window whose release shows it"
    found = []
    if full["hours_to_99"] is not None:
        goal = 24.0 if count == ANCHOR_APPLICATIONS else None
        found.append(Figure(mine, full["hours_to_99"], unit, goal))
    if part["mix_alone_hours"] is not None:
        found.append(Figure(f"{mine}_by_mix_alone", part["mix_alone_hours"], unit))
    return found


def _slowdowns(part: Part) -> list[Figure]:
    """What measuring costs at the shipped rate, and at the least that sees them all in a day."""
    host = measured_slowdown(RESULTS)
    if host is None:
        return []
    rates = {
        one["rate"]: one["within_a_day"] for one in part["curves"] if one["sampling"] == "windows"
    }
    least = min((rate for rate, share in rates.items() if share >= 0.5), default=1.0)
    shipped = max(s.rate_millionths for t in default_plan().tasks for s in t.sections) / 1e6
    unit = f"percent of the fleet's work; {host.source}"
    return [
        Figure("fleet_slowdown_percent", host.fleet_percent(shipped), unit),
        Figure("fleet_slowdown_percent_at_least_rate", host.fleet_percent(least), unit, 0.014),
        Figure("least_sampling_rate_for_a_day", least, "share of minute windows measured"),
    ]


def attribution() -> Part:
    """Shares of GPU time given to the right class."""
    shipped = load_applications()
    recorded = [one for one in shipped if one.is_recording]
    found: dict[str, float] = {}
    for gpus in SIZES:
        found[f"attribution_right_recorded_{gpus}_gpus"] = attribute(recorded, recorded, gpus).right
    for count in (2, 4, 8, 16, 25):
        some = _classes(shipped, count)
        found[f"attribution_right_{count}_candidates"] = attribute(some, some, 8).right
    half = _classes(recorded, 4)
    rest = [one for one in recorded if one not in half]
    found["attribution_unknown_right"] = attribute(half, rest, 8).right
    rows = [
        attribute_released(recorded, recorded, 8, epsilon=epsilon, hosts=hosts)
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)
        for hosts in (500, 2_000, 12_500, 100_000)
    ]
    write_rows(FOLDER / "attribution.parquet", rows)
    for one in rows:
        if one.epsilon == 2.0:
            found[f"attribution_released_{one.hosts}_hosts"] = one.released
    return found


def _classes(applications: Sequence[Application], count: int) -> list[Application]:
    """The tables of the first so many classes."""
    names = list(dict.fromkeys(one.workload.application for one in applications))[:count]
    return [one for one in applications if one.workload.application in names]
