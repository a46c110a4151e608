"""What a scenario's own adversaries come to, played on a small cohort.

Shares of the scenario are shares of the cohort; a minute of it is enough, because every window
meets them anew. The large fleet's releases are the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.scenario import Scenario

from .cohort import SMALL, CohortPlan
from .lies import Movement, move_statistic
from .lossy_network import FaultResult, face
from .tricks import TrickResult, play_trick


@dataclass(frozen=True, slots=True)
class Played:
    """Every adversary that a scenario names."""

    lies: tuple[Movement, ...]
    tricks: tuple[TrickResult, ...]
    faults: tuple[FaultResult, ...]


def play_scenario(scenario: Scenario, plan: CohortPlan = SMALL) -> Played:
    """Play a scenario's lies, tricks and faults, one after the other."""
    asked = scenario.adversaries
    liars = max(round(asked.lying_share * plan.hosts), 1) if asked.lying_share else 0
    lies = tuple(move_statistic(lie, liars, plan) for lie in asked.lies if liars)
    tricks = tuple(play_trick(trick, plan) for trick in asked.leader)
    largest = max(scenario.operators) / sum(scenario.operators)
    faults = {
        "duplicates": asked.duplicate_share,
        "reordering": asked.reorder_share,
        "helper_loss": asked.helper_lost_share,
        "clock_skew": asked.clock_skew_s,
        "mass_restart": largest if asked.mass_restart_hour >= 0 else 0.0,
        "dropout": scenario.dropout.share,
    }
    faced = tuple(face(fault, size, plan=plan) for fault, size in faults.items() if size)
    return Played(lies, tricks, faced)
