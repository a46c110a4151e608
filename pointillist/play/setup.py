"""What a simulation is made of, and the folder that remembers it: a run that is cut off goes on.

A folder holds `scenario.toml` and `plan.toml` as they were, `run.json` with what the command line
changed, `outcomes.sqlite` with every settled window, and what came of it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from pointillist.plan_file import load_plan, plan_path
from privacy.plan import Plan
from simulator.engine.journals import Plays, load_journals
from simulator.scenario import Scenario, ScenarioError, load, path_of

SCENARIO_FILE: Final = "scenario.toml"
PLAN_FILE: Final = "plan.toml"
RUN_FILE: Final = "run.json"
JOURNAL_HOSTS: Final = 130
"""Six standard deviations of a week's count under the shipped plan."""


class NoSuchRun(ValueError):
    """A folder is no simulation that could go on."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the command line changes of a scenario; None leaves it.

    journals        folder of agents' diagnosis journals that hosts live through
    journal_hosts   hosts for each of them, in every window that counts incidents
    """

    hosts: int | None = None
    hours: float | None = None
    seed: int | None = None
    fidelity: str | None = None
    journals: str | None = None
    journal_hosts: int | None = None

    def apply(self, scenario: Scenario) -> Scenario:
        """Change a scenario. Raises ScenarioError where a window no longer fits."""
        if self.hosts is not None:
            scenario = scenario.scaled(hosts=self.hosts)
        if self.hours is not None:
            scenario = scenario.with_(duration_s=max(1, round(self.hours * 3600)))
        plain = {"seed": self.seed, "fidelity": self.fidelity}
        scenario = scenario.with_(**{k: v for k, v in plain.items() if v is not None})
        if scenario.duration_s < scenario.step_s:
            raise ScenarioError(
                f"hours: expected at least one step of {scenario.step_s} s, got "
                f"{scenario.duration_s} s"
            )
        return scenario


@dataclass(frozen=True, slots=True)
class Setup:
    scenario: Scenario
    plan: Plan
    scenario_path: Path
    plan_path: Path
    changes: Changes

    @classmethod
    def make(cls, scenario: str, plan: str | None, changes: Changes) -> Self:
        """Read a scenario and its plan, by the name of a shipped one or by path.

        Raises  ScenarioError, PlanFileError, ParameterError, OSError
        """
        path = path_of(scenario)
        loaded = changes.apply(load(path))
        named = plan_path(plan or loaded.plan, path.parent)
        return cls(loaded, load_plan(named), path, named, changes)

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """Read what `keep` wrote. Raises NoSuchRun, and what `make` raises."""
        try:
            kept = json.loads((folder / RUN_FILE).read_text())
            changes = Changes(**kept["changes"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoSuchRun(
                f"{folder}: expected the folder of a simulation with its {RUN_FILE}, got none that "
                f"can be read ({error})"
            ) from None
        return cls.make(str(folder / SCENARIO_FILE), str(folder / PLAN_FILE), changes)

    def keep(self, folder: Path) -> None:
        shutil.copyfile(self.scenario_path, folder / SCENARIO_FILE)
        shutil.copyfile(self.plan_path, folder / PLAN_FILE)
        body: dict[str, Any] = {"scenario": self.scenario.name, "changes": asdict(self.changes)}
        (folder / RUN_FILE).write_text(json.dumps(body, indent=2) + "\n")

    @property
    def plays(self) -> Plays | None:
        """The journals that are replayed. Raises JournalError, OSError."""
        if self.changes.journals is None:
            return None
        each = self.changes.journal_hosts or JOURNAL_HOSTS
        return Plays(load_journals(Path(self.changes.journals)), each, self.scenario.seed)
