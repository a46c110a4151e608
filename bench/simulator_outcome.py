"""What a simulated fleet would see, and what adversaries and faults do to releases.

The one is applications, until when they are seen, and attribution; the other is bounds, refusals,
dropout and an attacker's guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from math import sqrt
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan
from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.adversaries.attacks import (
    HOST_ATTACKS,
    LEADER_ATTACKS,
    move_statistic,
    play_leader_attack,
)
from simulator.adversaries.lossy_network import FAULTS, face
from simulator.adversaries.membership_inference import (
    infer_application,
    infer_without_mask,
    infer_working,
)
from simulator.applications import Application, load_applications
from simulator.engine.interface import EngineSettings
from simulator.engine.simulation import Simulation
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet.fleet_model import FleetModel
from simulator.outcome.attribution import DAY_S, DayRuns, attribute, attribute_released, live_days
from simulator.outcome.seen import Design, Sampling, SeenCurve, seen_curve
from simulator.scenario import Applications, Dropout, Jobs, Scenario, load
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
LIARS: Final = (1, 4, 8)
FAULT_SIZES: Final = {
    "none": (0.0,), "duplicates": (0.02, 0.3), "reordering": (1.0,), "helper_loss": (0.3,),
    "mass_restart": (0.25, 1.0), "clock_skew": (2.0, 25.0, 120.0), "ledger_set_back": (0.1,),
    "dropout": (0.05, 0.15, 0.25),
}  # fmt: skip
DROPOUT_PERCENT: Final = (0, 5, 10, 15, 18, 20, 22, 25, 30, 40)
DROPOUT_HOSTS, DROPOUT_WINDOWS = 1_000, 3
TRIALS: Final = 100_000


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
    names = list(dict.fromkeys(one.workload.application for one in applications))[:count]
    return [one for one in applications if one.workload.application in names]


def adversaries(kept: Parts) -> Measured:
    """Measure what is missing; give every figure."""
    lies = kept.get("lies", play_host_attacks)
    faults = kept.get("faults", play_faults)
    lost = {d: kept.get(f"dropout_{d}", partial(dropout, d)) for d in DROPOUT_PERCENT}
    guess = kept.get("guess", guesses)
    figures = [Figure("false_sums_under_faults", faults["false_sums"], "releases", 0.0)]
    tables = {
        "lies": lies["lies"],
        "tricks": lies["tricks"],
        "faults": faults["faults"],
        "dropout": [{"percent": percent, **part} for percent, part in lost.items()],
        "guesses": guess,
    }
    return Measured(figures, tables)


def play_host_attacks() -> Part:
    """Every host attack by few and by many hosts; every attack of a Leader."""
    moved = [move_statistic(lie, liars) for lie in HOST_ATTACKS for liars in LIARS]
    tricks = [play_leader_attack(trick) for trick in LEADER_ATTACKS]
    return {"lies": [asdict(one) for one in moved], "tricks": [asdict(one) for one in tricks]}


def play_faults() -> Part:
    found = [face(fault, size) for fault in FAULTS for size in FAULT_SIZES[fault]]
    false_sums = sum(not one.true_sums for one in found)
    return {"false_sums": false_sums, "faults": [asdict(one) for one in found]}


def dropout(percent: int) -> Part:
    """Release windows of 1,000 hosts through every production state machine, some absent."""
    scenario = load("steady").scaled(hosts=DROPOUT_HOSTS)
    scenario = scenario.with_(
        duration_s=60 * DROPOUT_WINDOWS,
        fidelity="exact",
        operators=(1.0,) * 10,
        dropout=Dropout(share=percent / 100, late_share=0.0),
    )
    sections = (PlannedSection("kernel_mix", 200_000), PlannedSection("incidents", 100_000))
    task = PlannedTask("minute", 60, 30, 21_600, sections)
    plan = Plan("dropout", "masked", 2_000_000, 1_000, 12_500, 10_000, 1_250, 3, (task,))
    simulation = Simulation(scenario, plan, Catalogue.load(), EngineSettings(seed=1))
    sent = released = 0
    reasons: dict[str, int] = {}
    with closing(simulation.steps()) as steps:  # type: ignore[type-var]
        for step in steps:
            sent, released = sent + step.outcome.reporting, released + step.outcome.n
            if step.outcome.reason:
                reasons[step.outcome.reason] = reasons.get(step.outcome.reason, 0) + 1
    due = DROPOUT_HOSTS * DROPOUT_WINDOWS
    return {
        "released_percent": 100 * released / sent,
        "released_percent_of_due": 100 * released / due,
        "reasons": reasons,
    }


def guesses() -> dict[str, Any]:
    """Attack the shipped plan, with all its tasks at once."""
    scenario, catalogue = load("ten_percent_load"), Catalogue.load()
    week = 8 * 7 * 86_400
    span = 366 * week, 369 * week
    inventory = FleetModel(scenario, catalogue).inventory
    tasks = fleet_tasks(default_plan(), catalogue, inventory, span, (b"L" * 32, b"H" * 32))
    found = {
        "week": infer_working(tasks, TRIALS),
        "application_of_84": infer_application(tasks, 84, TRIALS // 4),
        "masked_alone": infer_without_mask(tasks[0], 4_000),
    }
    return {
        name: {**asdict(one), "advantage": one.advantage, "holds": one.holds}
        for name, one in found.items()
    }
