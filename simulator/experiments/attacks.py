"""Runs of who does not follow the protocol: lies, failing parts and tricks, and a guesser."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from simulator.adversaries import (
    FAULTS,
    LIES,
    TRICKS,
    CohortPlan,
    face,
    guess_application,
    guess_without_mask,
    guess_working,
    move_statistic,
    play_trick,
)
from simulator.cell_view import listed
from simulator.engine.exact_parties import ExactParties
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet import make_inventory
from wire.catalogue import Catalogue

from .experiment_runs import ExperimentRun

Row = dict[str, Any]

MOST_HOSTS: Final = 200
"""Of a cohort in which every report is sealed and every message is a production one."""

FAULT_SHARE: Final = 0.15
SKEW_S: Final = 60.0


def play_lies(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let a share of a small cohort lie in every way, one after the other.

    point       lying
    """
    del folder, catalogue
    plan = _cohort(run)
    liars = round(run.scenario.adversaries.lying_share * plan.hosts)
    found = [_movement(asdict(move_statistic(lie, liars, plan))) for lie in LIES]
    return {"cohort": plan.hosts, "liars": liars, "lies": found, "fidelity": "exact"}


def play_faults(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let every fault of the network strike, and the Leader try every trick.

    options     share: of the reports, hosts or windows that a fault strikes, 0.15
    """
    del folder, catalogue
    plan = _cohort(run)
    share = float(run.options.get("share", FAULT_SHARE))
    faults = []
    for fault in FAULTS:
        result = face(fault, SKEW_S if fault == "clock_skew" else share, 4, plan)
        told = {"refused": listed(result.refused), "reasons": listed(result.reasons)}
        faults.append(asdict(result) | told | {"released_percent": result.reports_released_percent})
    tricks = [asdict(result) | {"cleared": listed(result.cleared)}
              for result in (play_trick(trick, plan) for trick in TRICKS)]  # fmt: skip
    return {
        "cohort": plan.hosts,
        "struck_share": share,
        "faults": faults,
        "tricks": tricks,
        "fidelity": "exact",
    }


def play_guess(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let an attacker guess what one host did, a few thousand times over.

    options     trials, 4000; applications it chooses among, 25
    """
    del folder
    trials = int(run.options.get("trials", 4000))
    scenario = run.scenario
    inventory = make_inventory(scenario, catalogue)
    span = (scenario.start_s, scenario.end_s)
    tasks = fleet_tasks(run.plan, catalogue, inventory, span, ExactParties().public_keys)
    guesses = [
        guess_working(tasks, trials),
        guess_working(tasks, trials, windows=1),
        guess_application(tasks, int(run.options.get("applications", 25)), trials),
        guess_without_mask(tasks[0], min(trials, 1000), scenario.seed),
    ]
    return {
        "guesses": [
            {
                "attack": guess.attack,
                "choices": guess.choices,
                "trials": guess.trials,
                "right": guess.right.rate,
                "advantage": guess.advantage,
                "low": (guess.right.low - 1 / guess.choices) / (1 - 1 / guess.choices),
                "high": (guess.right.high - 1 / guess.choices) / (1 - 1 / guess.choices),
                "bound": guess.bound,
                "tight_bound": guess.tight_bound,
                "holds": guess.holds,
            }
            for guess in guesses
        ]
    }


def _cohort(run: ExperimentRun) -> CohortPlan:
    return CohortPlan(
        hosts=min(run.scenario.hosts, MOST_HOSTS),
        epsilon_millionths=run.plan.epsilon_millionths,
        seed=run.scenario.seed,
    )


def _movement(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"refused": listed(found["refused"])}
