"""From an experiment to its runs: one scenario and plan each, with a key of their own for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from privacy.plan import Plan
from simulator.scenario import Scenario
from wire.catalogue import Catalogue

from .axes import turned
from .experiment_file import Experiment, ExperimentPart

ROW_FORMAT: Final = 1
"""Raised when the columns of a row change their meaning: older rows are then played again."""


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One point of one part.

    point   axis -> value
    """

    part: str
    kind: str
    section: str
    point: Mapping[str, float]
    scenario: Scenario
    plan: Plan
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Hash of everything that its row depends on, 16 hex digits."""
        parts = (
            *(ROW_FORMAT, self.kind, self.section, self.scenario, self.plan),
            *(sorted(self.point.items()), sorted(self.options.items())),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """What a person calls it."""
        turns = " ".join(f"{axis}={value:g}" for axis, value in self.point.items())
        return f"{self.part} {turns} seed={self.scenario.seed}".replace("  ", " ")

    def columns(self) -> dict[str, Any]:
        """Give the columns that say which run a row is of."""
        scenario = self.scenario
        return {
            "part": self.part,
            "kind": self.kind,
            "key": self.key,
            "scenario": scenario.name,
            "plan": self.plan.name,
            "section": self.section,
            "seed": scenario.seed,
            "hosts": scenario.hosts,
            "hours": scenario.hours,
            "epsilon": self.plan.epsilon_millionths / 1e6,
            "delta": self.plan.delta_1e12 / 1e12,
            "dropout_share": scenario.dropout.share,
            "load": scenario.load.busy_share,
            **{f"axis_{axis}": value for axis, value in self.point.items()},
        }


Scenarios = Callable[[str], Scenario]
Plans = Callable[[str], Plan]


def runs_of(
    experiment: Experiment, scenarios: Scenarios, plans: Plans, catalogue: Catalogue
) -> Iterator[ExperimentRun]:
    """Give every run, part by part.

    scenarios, plans    load by name or path
    Raises              what they raise
    """
    for part in experiment.parts:
        base = _based(part, scenarios(part.scenario))
        plan = plans(part.plan or base.plan)
        for values in product(*part.axes.values()):
            point = dict(zip(part.axes, values, strict=True))
            for more in range(part.seeds):
                seeded = base.with_(seed=base.seed + more)
                scenario, turned_plan = turned((seeded, plan), point, catalogue)
                yield ExperimentRun(
                    part.name, part.kind, part.section, point, scenario, turned_plan, part.options
                )


def _based(part: ExperimentPart, scenario: Scenario) -> Scenario:
    # A run travels to another process, which a read-only view of a table does not survive.
    shares = dict(scenario.applications.shares)
    changes: dict[str, Any] = {
        "fidelity": part.fidelity,
        "applications": replace(scenario.applications, shares=shares),
    }
    if part.hosts:
        changes["hosts"] = part.hosts
    if part.hours:
        changes["duration_s"] = max(1, round(part.hours * 3600))
    return scenario.with_(**changes)
