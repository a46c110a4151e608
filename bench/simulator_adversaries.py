"""What adversaries and faults do to releases: bounds, refusals, dropout, an attacker's guesses."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan
from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.adversaries import (
    FAULTS,
    LIES,
    TRICKS,
    face,
    guess_application,
    guess_without_mask,
    guess_working,
    move_statistic,
    play_trick,
)
from simulator.engine.engine_port import EngineSettings
from simulator.engine.simulation import Simulation
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet import FleetModel
from simulator.scenario import Dropout, load
from wire.catalogue import Catalogue

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
    lies = kept.get("lies", play_lies)
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


def play_lies() -> Part:
    """Every lie by few and by many hosts; every trick of a Leader."""
    moved = [move_statistic(lie, liars) for lie in LIES for liars in LIARS]
    tricks = [play_trick(trick) for trick in TRICKS]
    return {"lies": [asdict(one) for one in moved], "tricks": [asdict(one) for one in tricks]}


def play_faults() -> Part:
    """Every fault at a few sizes."""
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
        "week": guess_working(tasks, TRIALS),
        "application_of_84": guess_application(tasks, 84, TRIALS // 4),
        "masked_alone": guess_without_mask(tasks[0], 4_000),
    }
    return {
        name: {**asdict(one), "advantage": one.advantage, "holds": one.holds}
        for name, one in found.items()
    }
