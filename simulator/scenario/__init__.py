"""What is simulated: one readable TOML file, checked key by key."""

from .scenario_file import load, names, parse
from .scenario_tables import (
    Adversaries,
    Applications,
    Dropout,
    FailSlow,
    Faults,
    FlashCrowd,
    FleetLoad,
    Jobs,
    Scenario,
    ScenarioError,
    Shape,
    Upgrades,
)

__all__ = [
    "Adversaries",
    "Applications",
    "Dropout",
    "FailSlow",
    "Faults",
    "FlashCrowd",
    "FleetLoad",
    "Jobs",
    "Scenario",
    "ScenarioError",
    "Shape",
    "Upgrades",
    "load",
    "names",
    "parse",
]
