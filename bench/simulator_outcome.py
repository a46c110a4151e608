"""What a simulated fleet would see: applications, and until when; attribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from math import sqrt
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan
from privacy.plan import Plan
from simulator.applications import Application, load_applications
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet import FleetModel
from simulator.outcome.attribution import attribute, attribute_released
from simulator.outcome.day_runs import DAY_S, DayRuns, live_days
from simulator.outcome.seen import Design, Sampling, SeenCurve, seen_curve
from simulator.scenario import Applications, Jobs, Scenario, load
from wire.catalogue import Catalogue

ANCHOR: Final = "ten_percent_load"
ANCHOR_APPLICATIONS: Final = 84
APPLICATIONS: Final = (84, 250)
RATES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
LIVED_DAYS: Final = 3
DRAWS: Final = 10
LONGEST_DAYS: Final = 30
"""Lived days are repeated up to here, for what takes longer: the load is stationary."""

POPULATIONS: Final = (
    ("seren", "seren"), ("pai", "pai"), ("kalos", "kalos"), ("helios", "helios"),
    ("philly", "philly"), ("kalos", "alibaba_2023"),
)  # fmt: skip
SHIPPED_WEIGHT: Final = 0.402
OPTIONS: Final = tuple((m, w) for m in (4, 18) for w in (0.1, 0.2, 0.3, SHIPPED_WEIGHT))
SIZES: Final = (1, 8, 64, 512, 4096)


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give every figure."""
    curves = {count: kept.get(f"seen_{count}", partial(seen, count)) for count in APPLICATIONS}
    people = {
        names: kept.get(f"seen_{'_'.join(names)}", partial(population, *names))
        for names in POPULATIONS
    }
    right = kept.get("attribution", attribution)
    figures: list[Figure] = []
    for count, part in curves.items():
        figures += _seen_figures(count, part)
    for names, part in people.items():
        name = f"hours_to_99_percent_applications_{'_'.join(names)}"
        if part["hours"] is not None:
            figures.append(Figure(name, part["hours"], "h, same plan, jobs of this population"))
    figures += [Figure(name, one, "share of GPU time") for name, one in right["figures"].items()]
    tables = {
        "seen": {str(count): part for count, part in curves.items()},
        "populations": {"_".join(names): part for names, part in people.items()},
        "attributed": right["rows"],
    }
    return Measured(figures, tables)


def events(plan: Plan, above_s: int) -> Plan:
    """Give the plan's tasks whose windows are longer."""
    return replace(plan, tasks=tuple(task for task in plan.tasks if task.window_s > above_s))


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
    return {"figures": found, "rows": [asdict(one) for one in rows]}


def _classes(applications: Sequence[Application], count: int) -> list[Application]:
    """The tables of the first so many classes."""
    names = list(dict.fromkeys(one.workload.application for one in applications))[:count]
    return [one for one in applications if one.workload.application in names]
