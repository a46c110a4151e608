"""Read a plan from TOML: exact numbers, unknown keys refused, each error with its place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from privacy.plan import Plan, PlannedSection, PlannedTask

DEFAULT_PATH: Final = Path(__file__).with_name("plans") / "default.toml"
MAX_BYTES: Final = 1 << 20

_PLAN_KEYS: Final = {
    "format", "name", "scheme", "epsilon", "delta", "hosts", "n_min", "t", "min_operators",
    "gpus_per_host", "task",
}  # fmt: skip
_TASK_KEYS: Final = {
    "series", "window_s", "lateness_s", "retention_s", "windows", "weights", "rates",
}  # fmt: skip


class PlanFileError(ValueError):
    """A plan file does not say what a plan must say; the message names the key."""


def default_plan() -> Plan:
    """Return the shipped default plan."""
    return load_plan(DEFAULT_PATH)


def load_plan(path: Path) -> Plan:
    """Read a plan file and check it against the protocol's bounds.

    Raises      PlanFileError for a file that is no plan, ParameterError for a plan that breaks a
                bound, OSError where it cannot be read
    """
    try:
        plan = plan_from(read_content(path))
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}") from error
    plan.check()
    return plan


def read_content(path: Path) -> dict[str, Any]:
    """Parse a plan file's TOML, floats as exact decimals; PlanFileError when it is none."""
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise PlanFileError(f"expected at most {MAX_BYTES} bytes, got more")
    try:
        return tomllib.loads(text.decode(), parse_float=Decimal)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanFileError(f"no TOML: {error}") from error


def equal_sections(cohort: Mapping[str, Any], window_s: int, sections: int) -> Plan:
    """Build a plan of one task with equal sections that share the whole budget.

    cohort      a plan file's keys but its tasks, all of them optional but `hosts`
    """
    weight = Decimal(10**6 // sections) / 10**6
    task = {
        "series": "planned",
        "window_s": window_s,
        "lateness_s": 30,
        "retention_s": 21_600,
        "weights": {f"section_{place}": weight for place in range(1, sections + 1)},
    }
    named = {"format": 1, "name": f"{sections} equal sections", "min_operators": 3}
    return plan_from({**named, **cohort, "task": [task]})


def plan_from(content: Mapping[str, Any]) -> Plan:
    """Build a plan from parsed TOML (floats as Decimal); bounds are not checked here."""
    _known(content, _PLAN_KEYS, "the plan")
    if content.get("format") != 1:
        raise PlanFileError(f"format: expected 1, got {content.get('format')!r}")
    hosts = _integer(content, "hosts", "the plan", 1)
    tasks = content.get("task", [])
    if not isinstance(tasks, list) or not tasks:
        raise PlanFileError("task: expected at least one [[task]], got none")
    return Plan(
        name=_text(content, "name", "the plan"),
        scheme=_text(content, "scheme", "the plan", "masked"),
        epsilon_millionths=_scaled(content, "epsilon", "the plan", 10**6, Decimal(2)),
        delta_1e12=_scaled(content, "delta", "the plan", 10**12, Decimal("1e-9")),
        hosts=hosts,
        n_min=_integer(content, "n_min", "the plan", 1, hosts * 4 // 5),
        t=_integer(content, "t", "the plan", 0, -(-hosts // 10)),
        min_operators=_integer(content, "min_operators", "the plan", 0, 3),
        gpus_per_host=_integer(content, "gpus_per_host", "the plan", 1, 8),
        tasks=tuple(_task(task, f"[[task]] {place}") for place, task in enumerate(tasks, 1)),
    )


def _task(content: Any, where: str) -> PlannedTask:
    _known(content, _TASK_KEYS, where)
    weights, rates = content.get("weights", {}), content.get("rates", {})
    for name, table in (("weights", weights), ("rates", rates)):
        if not isinstance(table, Mapping):
            raise PlanFileError(f"{where}, {name}: expected a table, got {table!r}")
    stray = sorted(set(rates) - set(weights))
    if stray:
        raise PlanFileError(f"{where}, rates: expected sections that have a weight, got {stray}")
    sections = tuple(
        PlannedSection(
            name,
            _scaled(weights, name, f"{where}, weights", 10**6),
            _scaled(rates, name, f"{where}, rates", 10**6, Decimal(1)),
        )
        for name in weights
    )
    return PlannedTask(
        series=_text(content, "series", where),
        window_s=_integer(content, "window_s", where, 1),
        lateness_s=_integer(content, "lateness_s", where, 0),
        retention_s=_integer(content, "retention_s", where, 0),
        sections=sections,
        windows=_integer(content, "windows", where, 1) if "windows" in content else None,
    )


def _known(content: Any, known: set[str], where: str) -> None:
    if not isinstance(content, Mapping):
        raise PlanFileError(f"{where}: expected a table, got {content!r}")
    unknown = sorted(set(content) - known)
    if unknown:
        raise PlanFileError(
            f"{where}: unknown key {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )


def _text(content: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = content.get(key, default)
    if not isinstance(value, str) or not value:
        raise PlanFileError(f"{where}, {key}: expected text, got {value!r}")
    return value


def _integer(
    content: Mapping[str, Any], key: str, where: str, least: int, default: int | None = None
) -> int:
    value = content.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 62:
        raise PlanFileError(f"{where}, {key}: expected an integer from {least} up, got {value!r}")
    return value


def _scaled(
    content: Mapping[str, Any], key: str, where: str, unit: int, default: Decimal | None = None
) -> int:
    """Return a positive number in units of 1/unit, exactly."""
    value = content.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise PlanFileError(f"{where}, {key}: expected a number, got {value!r}")
    number = Decimal(value)
    if not number.is_finite() or not 0 < number < 1000:
        raise PlanFileError(f"{where}, {key}: expected a number above 0, got {value}")
    scaled = number * unit
    if scaled < 1 or scaled != int(scaled):
        raise PlanFileError(f"{where}, {key}: expected a multiple of 1/{unit}, got {value}")
    return int(scaled)
