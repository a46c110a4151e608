"""A scenario from its TOML file: unknown keys, types and bounds are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from transport.config_tree import build, did_you_mean, read_tree

from .scenario_tables import Scenario, ScenarioError

FOLDER: Final = Path(__file__).with_name("shipped")
FORMAT: Final = 1


def names() -> tuple[str, ...]:
    """Names of the shipped scenarios."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(scenario: str | Path) -> Scenario:
    """Read a scenario: a shipped one by its name, or a file.

    Raises  ScenarioError naming the file, the key, what was expected and what came
    """
    path = _find(scenario)
    read = read_tree(Scenario, path, error=ScenarioError, file_format=FORMAT)
    return _checked(read, f"{path}: ")


def parse(content: Mapping[str, Any]) -> Scenario:
    """Build a scenario from parsed TOML. Raises ScenarioError."""
    return _checked(build(Scenario, content, error=ScenarioError, file_format=FORMAT))


def _checked(scenario: Scenario, where: str = "") -> Scenario:
    if scenario.start_s % scenario.step_s:
        raise ScenarioError(
            f"{where}start: expected a multiple of step_s = {scenario.step_s}, "
            f"got {scenario.start_s}"
        )
    if min(scenario.operators) <= 0:
        raise ScenarioError(
            f"{where}operators: expected shares above 0, got {list(scenario.operators)}"
        )
    return scenario


def _find(scenario: str | Path) -> Path:
    if isinstance(scenario, Path) or "/" in scenario or scenario.endswith(".toml"):
        return Path(scenario)
    if scenario in names():
        return FOLDER / f"{scenario}.toml"
    if Path(scenario).is_file():
        return Path(scenario)
    raise ScenarioError(
        f"expected a file or one of {', '.join(names())}, got {scenario!r}"
        f"{did_you_mean(scenario, names())}"
    )
