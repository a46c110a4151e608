"""An experiment from its TOML file: parts, the axes that they sweep, and their runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.scenario import FIDELITIES, NAME, Scenario
from transport.settings.config import build, did_you_mean, limited, read_table
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS

MILLION: Final = 1_000_000
SHORT_S: Final = 3600
"""The tasks whose windows are at most this long are swept; a day, a week and eight weeks stay."""

Setup = tuple[Scenario, Plan]


@dataclass(frozen=True, slots=True)
class Axis:
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


FORMAT: Final = 1
MAX_PARTS: Final = 64
MAX_RUNS: Final = 10_000
MAX_VALUES: Final = 100


class ExperimentError(ValueError):
    """An experiment breaks a rule: names the file, the key, what was expected and what came."""


def _check_axes(axes: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in axes.items():
        if name not in AXES:
            raise ValueError(
                f"axes.{name}: unknown key{did_you_mean(name, AXES)}; "
                f"expected one of {', '.join(AXES)}"
            )
        for value in values:
            _check_bounds(value, f"axes.{name}", AXES[name])
        if not 1 <= len(values) <= MAX_VALUES or len(set(values)) != len(values):
            raise ValueError(
                f"axes.{name}: expected an array of 1 to {MAX_VALUES}, each value once, "
                f"got {values!r:.80}"
            )


def _check_bounds(got: Any, where: str, axis: Axis) -> None:
    number = isinstance(got, int if axis.whole else int | float) and not isinstance(got, bool)
    if not number or not axis.low <= got <= axis.high:
        what = "an integer" if axis.whole else "a number"
        raise ValueError(
            f"{where}: expected {what} from {axis.low:g} to {axis.high:g}, got {got!r:.80}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPart:
    """One sweep: every combination of its axes' values, each with every seed.

    title       of its figure; chapter: under which heading; note: a sentence of the author's own
    figure      how it is drawn (simulator/experiments/figures.py), "" for that of its kind
    kind        what is done with a point (simulator/experiments/kinds.py)
    scenario    name of a shipped scenario, or a file
    plan        in place of the scenario's, "" to leave it
    section     whose error is reported
    hosts       in place of the scenario's, 0 to leave them
    hours       in place of the scenario's duration, 0 to leave it
    seeds       how many, counted from the scenario's own
    options     of the kind
    """

    name: str = limited(form=NAME)
    title: str = ""
    chapter: str = ""
    note: str = ""
    figure: str = ""
    kind: str = "windows"
    scenario: str
    plan: str = ""
    section: str = "kernel_mix"
    hosts: int = limited(0, low=1, high=1_000_000)
    hours: float = limited(0.0, low=0.001, high=8760)
    fidelity: str = limited("noise", choices=FIDELITIES)
    seeds: int = limited(1, low=1, high=1000)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_axes(self.axes)

    @property
    def points(self) -> int:
        return self.seeds * math.prod(len(values) for values in self.axes.values())


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that one file asks for; publish: report and table are written beside it too."""

    name: str = limited(form=NAME)
    parts: tuple[ExperimentPart, ...] = limited(key="part", fewest=1, most=MAX_PARTS)
    title: str = ""
    about: str = ""
    publish: bool = False

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"part names: expected each once, got {', '.join(names)}")
        runs = sum(part.points for part in self.parts)
        if runs > MAX_RUNS:
            raise ValueError(f"expected at most {MAX_RUNS:,} runs, got {runs:,}")


def load(path: Path, kinds: Iterable[str], figures: Iterable[str]) -> Experiment:
    """Read an experiment of these kinds and figures. Raises ExperimentError."""
    try:
        content = read_table(path, error=ExperimentError)
    except OSError as error:
        raise ExperimentError(f"{path}: {error.strerror}") from None
    return parse(content, kinds, figures, f"{path}: ")


def parse(
    content: Mapping[str, Any], kinds: Iterable[str], figures: Iterable[str], where: str = ""
) -> Experiment:
    found = build(Experiment, content, where, error=ExperimentError, file_format=FORMAT)
    known = {"kind": tuple(kinds), "figure": ("", *figures)}
    for part in found.parts:
        for key, names in known.items():
            if getattr(part, key) not in names:
                raise ExperimentError(
                    f"{where}part[{part.name}].{key}: expected one of {', '.join(names)}, "
                    f"got {getattr(part, key)!r:.80}"
                )
    return found


ROW_FORMAT: Final = 1
"""Raised when the columns of a row change their meaning: older rows are then played again."""


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One point (axis -> value) of one part."""

    part: str
    kind: str
    section: str
    point: Mapping[str, float]
    scenario: Scenario
    plan: Plan
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        parts = (
            *(ROW_FORMAT, self.kind, self.section, self.scenario, self.plan),
            *(sorted(self.point.items()), sorted(self.options.items())),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        turns = " ".join(f"{axis}={value:g}" for axis, value in self.point.items())
        return f"{self.part} {turns} seed={self.scenario.seed}".replace("  ", " ")

    def columns(self) -> dict[str, Any]:
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
    """Give every run, part by part."""
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
