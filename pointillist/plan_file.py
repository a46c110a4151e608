"""Read a plan from TOML: exact numbers, unknown keys refused, each error with its place.

How many indicators simulated hosts have to tell: what `pointillist plan` holds m against.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np

from privacy.calibrate import DELTA_1E12, EPSILON_MILLIONTHS
from privacy.indicator_bias import Counts
from privacy.plan import Plan, PlannedSection, PlannedTask
from transport.settings.config import build, limited, read_table

PLANS: Final = Path(__file__).with_name("plans")
DEFAULT_PATH: Final = PLANS / "default.toml"
FORMAT: Final = 1
_MILLION: Final = 10**6
_MOST: Final = (1 << 62) - 1


class PlanFileError(ValueError):
    """A plan file does not say what a plan must say; the message names the key."""


def plan_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PLANS.glob("*.toml")))


def plan_path(plan: str, beside: Path | None = None) -> Path:
    """Give a shipped plan's file, or a path's, from here or from `beside`. Raises PlanFileError."""
    if plan in plan_names():
        return PLANS / f"{plan}.toml"
    for base in (Path(), beside):
        if base is not None and (base / plan).is_file():
            return base / plan
    expected = f"expected a file or one of {', '.join(plan_names())}"
    raise PlanFileError(f"plan: {expected}, got {plan!r}")


def default_plan() -> Plan:
    return load_plan(DEFAULT_PATH)


def load_plan(path: Path) -> Plan:
    """Read a plan file and check it against the protocol's bounds.

    Raises      PlanFileError for a file that is no plan, ParameterError for a plan that breaks a
                bound, OSError where it cannot be read
    """
    plan = plan_from(read_content(path), f"{path}: ")
    plan.check()
    return plan


def read_content(path: Path) -> dict[str, Any]:
    """Parse a plan file's TOML, floats as exact decimals; PlanFileError when it is none."""
    return read_table(path, error=PlanFileError, parse_float=Decimal)


def equal_sections(cohort: Mapping[str, Any], window_s: int, sections: int) -> Plan:
    """Build a plan of one task with equal sections that share the whole budget.

    cohort      a plan file's keys but its tasks, all of them optional but `hosts`
    """
    weight = Decimal(_MILLION // sections) / _MILLION
    task = {
        "series": "planned",
        "window_s": window_s,
        "lateness_s": 30,
        "retention_s": 21_600,
        "weights": {f"section_{place}": weight for place in range(1, sections + 1)},
    }
    named = {"format": FORMAT, "name": f"{sections} equal sections", "min_operators": 3}
    return plan_from({**named, **cohort, "task": [task]})


def plan_from(content: Mapping[str, Any], where: str = "") -> Plan:
    """Build a plan from parsed TOML (floats as Decimal); bounds are not checked here.

    where   what stands before each key in a message
    """
    table = build(_PlanTable, content, where, error=PlanFileError, file_format=FORMAT)
    return table.plan


def _scaled(got: Any, unit: int) -> int:
    """Return a positive number in units of 1/unit, exactly. Raises ValueError."""
    if isinstance(got, bool) or not isinstance(got, int | Decimal):
        raise ValueError(f"expected a number, got {got!r}")
    number = Decimal(got)
    if not number.is_finite() or not 0 < number < 1000:
        raise ValueError(f"expected a number above 0 and below 1000, got {got}")
    scaled = number * unit
    if scaled < 1 or scaled != int(scaled):
        raise ValueError(f"expected a multiple of 1/{unit}, got {got}")
    return int(scaled)


def _millionths(got: Any) -> int:
    return _scaled(got, _MILLION)


def _trillionths(got: Any) -> int:
    return _scaled(got, 10**12)


@dataclass(frozen=True, slots=True)
class _TaskTable:
    series: str = limited(form=".+")
    window_s: int = limited(low=1, high=_MOST)
    lateness_s: int = limited(low=0, high=_MOST)
    retention_s: int = limited(low=0, high=_MOST)
    windows: int | None = limited(None, low=1, high=_MOST)
    weights: Mapping[str, int] = field(default_factory=dict, metadata={"read": _millionths})
    rates: Mapping[str, int] = field(default_factory=dict, metadata={"read": _millionths})

    def __post_init__(self) -> None:
        stray = sorted(set(self.rates) - set(self.weights))
        if stray:
            raise ValueError(f"rates: expected sections that have a weight, got {stray}")

    @property
    def task(self) -> PlannedTask:
        sections = tuple(
            PlannedSection(name, weight, self.rates.get(name, _MILLION))
            for name, weight in self.weights.items()
        )
        return PlannedTask(
            self.series, self.window_s, self.lateness_s, self.retention_s, sections, self.windows
        )


@dataclass(frozen=True, slots=True)
class _PlanTable:
    name: str = limited(form=".+")
    hosts: int = limited(low=1, high=_MOST)
    scheme: str = limited("masked", form=".+")
    epsilon: int = limited(EPSILON_MILLIONTHS, read=_millionths)
    delta: int = limited(DELTA_1E12, read=_trillionths)
    n_min: int | None = limited(None, low=1, high=_MOST)
    t: int | None = limited(None, low=0, high=_MOST)
    min_operators: int = limited(3, low=0, high=_MOST)
    gpus_per_host: int = limited(8, low=1, high=_MOST)
    tasks: tuple[_TaskTable, ...] = limited((), key="task")

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError("task: expected at least one [[task]], got none")

    @property
    def plan(self) -> Plan:
        return Plan(
            name=self.name,
            scheme=self.scheme,
            epsilon_millionths=self.epsilon,
            delta_1e12=self.delta,
            hosts=self.hosts,
            n_min=self.hosts * 4 // 5 if self.n_min is None else self.n_min,
            t=-(-self.hosts // 10) if self.t is None else self.t,
            min_operators=self.min_operators,
            gpus_per_host=self.gpus_per_host,
            tasks=tuple(table.task for table in self.tasks),
        )


COUNTS_FILE: Final = PLANS / "indicator_counts.json"


def shipped_counts() -> dict[tuple[str, int], dict[str, Counts]]:
    """Give host-windows by how many indicators are set: section, window_s -> scenario -> counts."""
    return {
        (found["section"], found["window_s"]): {
            name: np.array(hosts, np.int64) for name, hosts in found["host_windows"].items()
        }
        for found in json.loads(COUNTS_FILE.read_text())["sections"]
    }
