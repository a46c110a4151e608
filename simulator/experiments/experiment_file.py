"""An experiment from its TOML file: parts, the axes that they sweep, and their runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
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
Turn = Callable[[Setup, float, Catalogue], Setup]


@dataclass(frozen=True, slots=True)
class Axis:
    """Bounds of an axis' values, both included, and what it turns; None: it is a kind's own."""

    low: float
    high: float
    whole: bool = False
    turn: Turn | None = None


def _scenario(change: Callable[[Scenario, float], dict[str, Any]]) -> Turn:
    """Make a turn of the scenario from the fields that it changes."""
    return lambda setup, value, _: (setup[0].with_(**change(setup[0], value)), setup[1])


def _short(change: Callable[[PlannedTask, float, Catalogue], PlannedTask]) -> Turn:
    """Make a turn of the tasks whose windows are short."""

    def turn(setup: Setup, value: float, catalogue: Catalogue) -> Setup:
        tasks = (t if t.window_s > SHORT_S else change(t, value, catalogue) for t in setup[1].tasks)
        return setup[0], replace(setup[1], tasks=tuple(tasks))

    return turn


def _sampled(task: PlannedTask, value: float, _: Catalogue) -> PlannedTask:
    rate = max(1, round(value * MILLION))
    sections = tuple(replace(section, rate_millionths=rate) for section in task.sections)
    return replace(task, sections=sections)


def _fitted(task: PlannedTask, value: float, catalogue: Catalogue) -> PlannedTask:
    """Keep the first sections that fit into d coordinates; they share the task's whole budget."""
    kept: list[PlannedSection] = []
    left = int(value) - CHECK_WORDS
    for section in task.sections:
        length = catalogue.section(section.name).length
        if length <= left:
            kept.append(section)
            left -= length
    if not kept:
        return task
    whole, part = task.weight_millionths, sum(section.weight_millionths for section in kept)
    shares = (replace(s, weight_millionths=s.weight_millionths * whole // part) for s in kept)
    return replace(task, sections=tuple(shares))


def _epsilon(setup: Setup, value: float, _: Catalogue) -> Setup:
    return setup[0], replace(setup[1], epsilon_millionths=round(value * MILLION))


def _numbered(scenario: Scenario, value: float) -> dict[str, Any]:
    return {"applications": replace(scenario.applications, numbered=int(value))}


def _lying(scenario: Scenario, value: float) -> dict[str, Any]:
    return {"adversaries": replace(scenario.adversaries, lying_share=float(value))}


AXES: Final[Mapping[str, Axis]] = {
    "epsilon": Axis(0.01, 32, turn=_epsilon),
    "window": Axis(1, SHORT_S, True, _short(lambda t, s, _: replace(t, window_s=int(s)))),
    "cohort": Axis(1, 1_000_000, True, _scenario(lambda _, hosts: {"hosts": int(hosts)})),
    "dropout": Axis(
        0, 0.9, turn=_scenario(lambda s, x: {"dropout": replace(s.dropout, share=float(x))})
    ),
    "d": Axis(16, 65_536, True, _short(_fitted)),
    "sampling_rate": Axis(1e-4, 1, turn=_short(_sampled)),
    "load": Axis(
        0, 0.98, turn=_scenario(lambda s, x: {"load": replace(s.load, busy_share=float(x))})
    ),
    "applications": Axis(1, 250, True, _scenario(_numbered)),
    "lying": Axis(0, 0.5, turn=_scenario(_lying)),
    "candidates": Axis(1, 250, whole=True),
    "job_gpus": Axis(1, 65_536, whole=True),
    "unknown": Axis(0, 0.9),
}
"""`window` in seconds, `cohort` in hosts, `d` in coordinates of a short task."""


def turned(setup: Setup, point: Mapping[str, float], catalogue: Catalogue) -> Setup:
    """Apply one point of a sweep to a scenario and its plan."""
    for axis, value in point.items():
        if (turn := AXES[axis].turn) is not None:
            setup = turn(setup, value, catalogue)
    return setup


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
        axis = AXES[name]
        for got in values:
            number = isinstance(got, int if axis.whole else int | float)
            if not number or isinstance(got, bool) or not axis.low <= got <= axis.high:
                what = "an integer" if axis.whole else "a number"
                raise ValueError(
                    f"axes.{name}: expected {what} from {axis.low:g} to {axis.high:g}, "
                    f"got {got!r:.80}"
                )
        if not 1 <= len(values) <= MAX_VALUES or len(set(values)) != len(values):
            raise ValueError(
                f"axes.{name}: expected an array of 1 to {MAX_VALUES}, each value once, "
                f"got {values!r:.80}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPart:
    """One sweep: every combination of its axes' values, each with every seed.

    plan, hosts, hours  in place of the scenario's; "" or 0: as it has them
    figure              of `figures.py`, "": that of its kind, which is of `kinds.py`
    section             whose error is reported
    seeds               how many, counted from the scenario's own
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
                setup = turned((seeded, plan), point, catalogue)
                yield ExperimentRun(part.name, part.kind, part.section, point, *setup, part.options)


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
