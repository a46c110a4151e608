"""What a sweep can turn, and how each turn changes the scenario or the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.scenario import Scenario
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS

MILLION: Final = 1_000_000
SHORT_S: Final = 3600
"""The tasks whose windows are at most this long are swept; a day, a week and eight weeks stay."""

Setup = tuple[Scenario, Plan]


@dataclass(frozen=True, slots=True)
class Axis:
    """Bounds of an axis' values, both included."""

    low: float
    high: float
    whole: bool = False


AXES: Final[Mapping[str, Axis]] = MappingProxyType(
    {
        "epsilon": Axis(0.01, 32),
        "window": Axis(1, SHORT_S, whole=True),
        "cohort": Axis(1, 1_000_000, whole=True),
        "dropout": Axis(0, 0.9),
        "d": Axis(16, 65_536, whole=True),
        "sampling_rate": Axis(1e-4, 1),
        "load": Axis(0, 0.98),
        "applications": Axis(1, 250, whole=True),
        "lying": Axis(0, 0.5),
        "candidates": Axis(1, 250, whole=True),
        "job_gpus": Axis(1, 65_536, whole=True),
        "unknown": Axis(0, 0.9),
    }
)
"""Axis -> bounds; `window` in seconds, `cohort` in hosts, `d` in coordinates of a short task."""


def turned(setup: Setup, point: Mapping[str, float], catalogue: Catalogue) -> Setup:
    """Apply one point of a sweep to a scenario and its plan."""
    for axis, value in point.items():
        if axis in _TURNS:  # the others are a kind's own
            setup = _TURNS[axis](setup, value, catalogue)
    return setup


def _epsilon(setup: Setup, value: float, _: Catalogue) -> Setup:
    scenario, plan = setup
    return scenario, replace(plan, epsilon_millionths=round(value * MILLION))


def _window(setup: Setup, value: float, _: Catalogue) -> Setup:
    return _short(setup, lambda task: replace(task, window_s=int(value)))


def _cohort(setup: Setup, value: float, _: Catalogue) -> Setup:
    scenario, plan = setup
    return scenario.scaled(hosts=int(value)), plan


def _dropout(setup: Setup, value: float, _: Catalogue) -> Setup:
    scenario, plan = setup
    return scenario.with_(dropout=replace(scenario.dropout, share=float(value))), plan


def _sampling(setup: Setup, value: float, _: Catalogue) -> Setup:
    rate = max(1, round(value * MILLION))

    def sampled(task: PlannedTask) -> PlannedTask:
        sections = tuple(replace(section, rate_millionths=rate) for section in task.sections)
        return replace(task, sections=sections)

    return _short(setup, sampled)


def _d(setup: Setup, value: float, catalogue: Catalogue) -> Setup:
    return _short(setup, lambda task: _fitted(task, int(value), catalogue))


def _fitted(task: PlannedTask, d: int, catalogue: Catalogue) -> PlannedTask:
    """Keep the first sections that fit into d coordinates; they share the task's whole budget."""
    kept: list[PlannedSection] = []
    left = d - CHECK_WORDS
    for section in task.sections:
        length = catalogue.section(section.name).length
        if length <= left:
            kept.append(section)
            left -= length
    if not kept:
        return task
    whole, part = task.weight_millionths, sum(section.weight_millionths for section in kept)
    return replace(
        task,
        sections=tuple(
            replace(section, weight_millionths=section.weight_millionths * whole // part)
            for section in kept
        ),
    )


def _load(setup: Setup, value: float, _: Catalogue) -> Setup:
    scenario, plan = setup
    return scenario.with_(load=replace(scenario.load, busy_share=float(value))), plan


def _applications(setup: Setup, value: float, _: Catalogue) -> Setup:
    scenario, plan = setup
    return scenario.with_(applications=replace(scenario.applications, numbered=int(value))), plan


def _lying(setup: Setup, value: float, _: Catalogue) -> Setup:
    scenario, plan = setup
    return scenario.with_(adversaries=replace(scenario.adversaries, lying_share=float(value))), plan


def _short(setup: Setup, change: Callable[[PlannedTask], PlannedTask]) -> Setup:
    scenario, plan = setup
    tasks = tuple(change(task) if task.window_s <= SHORT_S else task for task in plan.tasks)
    return scenario, replace(plan, tasks=tasks)


_TURNS: Final[Mapping[str, Callable[[Setup, float, Catalogue], Setup]]] = MappingProxyType(
    {
        "epsilon": _epsilon,
        "window": _window,
        "cohort": _cohort,
        "dropout": _dropout,
        "d": _d,
        "sampling_rate": _sampling,
        "load": _load,
        "applications": _applications,
        "lying": _lying,
    }
)
