"""A scenario from its TOML file: unknown keys, types and bounds are refused by name."""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from .scenario_tables import Scenario, ScenarioError

FOLDER: Final = Path(__file__).with_name("shipped")
MAX_BYTES: Final = 1 << 20
MAX_ITEMS: Final = 1024

# Keys of the file whose field has another name: a list of [[shape]], a date for seconds.
_RENAMED: Final = {"shapes": "shape", "start_s": "start"}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def names() -> tuple[str, ...]:
    """Names of the shipped scenarios."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(scenario: str | Path) -> Scenario:
    """Read a scenario: a shipped one by its name, or a file.

    Raises  ScenarioError naming the file, the key, what was expected and what came
    """
    path = _find(scenario)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise ScenarioError(f"{path}: expected at most {MAX_BYTES} bytes, got more")
    try:
        return parse(tomllib.loads(text.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"{path}: no TOML: {error}") from None
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def parse(content: Mapping[str, Any]) -> Scenario:
    """Build a scenario from parsed TOML. Raises ScenarioError."""
    rest = dict(content)
    if rest.pop("format", None) != 1:
        raise ScenarioError(f"format: expected 1, got {content.get('format')!r}")
    scenario: Scenario = _table(Scenario, rest, "")
    if not _NAME.fullmatch(scenario.name):
        raise ScenarioError(f"name: expected a-z, 0-9, _ and -, got {scenario.name!r}")
    if scenario.start_s % scenario.step_s:
        raise ScenarioError(
            f"start: expected a multiple of step_s = {scenario.step_s}, got {scenario.start_s}"
        )
    if not scenario.shapes or not scenario.operators or min(scenario.operators) <= 0:
        raise ScenarioError(
            "shape, operators: expected at least one each, and operators above 0, got "
            f"{len(scenario.shapes)} shapes and operators {list(scenario.operators)}"
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
        f"{_near(scenario, names())}"
    )


def _near(got: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(got, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _table(kind: Any, content: Any, where: str) -> Any:
    """Build one frozen table; `where` is its path in the file."""
    if not isinstance(content, Mapping):
        raise ScenarioError(f"{where}: expected a table, got {content!r}")
    hints = typing.get_type_hints(kind)
    known = {_RENAMED.get(one.name, one.name): one for one in fields(kind)}
    place = f"[{where}] " if where else ""
    for key in content:
        if key not in known:
            raise ScenarioError(
                f"{place}{key}: unknown key{_near(key, known)}; there are {', '.join(known)}"
            )
    given = {}
    for key, one in known.items():
        path = f"{where}.{key}" if where else key
        if key in content:
            given[one.name] = _value(hints[one.name], one, content[key], path)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ScenarioError(f"{path}: expected {_wanted(hints[one.name], one)}, got nothing")
    return kind(**given)


def _value(hint: Any, one: Field[Any], got: Any, path: str) -> Any:
    if one.name == "start_s":
        return _time(got, path)
    if is_dataclass(hint):
        return _table(hint, got, path)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _items(typing.get_args(hint)[0], one, got, path)
    if origin is not None and issubclass(origin, Mapping):
        return _weights(got, path)
    kinds = (int, float) if hint is float else hint
    right = isinstance(got, kinds) and (hint is bool or not isinstance(got, bool))
    low, high = one.metadata.get("low"), one.metadata.get("high")
    choices = one.metadata.get("choices")
    if right and low is not None and high is not None:
        right = low <= got <= high
    if right and choices:
        right = got in choices
    if not right:
        near = _near(got, choices) if choices and isinstance(got, str) else ""
        raise ScenarioError(f"{path}: expected {_wanted(hint, one)}, got {got!r}{near}")
    return float(got) if hint is float else got


def _items(item: Any, one: Field[Any], got: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(got, list) or len(got) > MAX_ITEMS:
        raise ScenarioError(f"{path}: expected a list of at most {MAX_ITEMS}, got {got!r}")
    where = [f"{path}, entry {place}" for place in range(1, len(got) + 1)]
    if is_dataclass(item):
        return tuple(_table(item, entry, at) for entry, at in zip(got, where, strict=True))
    return tuple(_value(item, one, entry, at) for entry, at in zip(got, where, strict=True))


def _weights(got: Any, path: str) -> Mapping[str, float]:
    if not isinstance(got, Mapping):
        raise ScenarioError(f"{path}: expected a table of weights, got {got!r}")
    for name, weight in got.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
            raise ScenarioError(f"{path}.{name}: expected a weight from 0 up, got {weight!r}")
    return {name: float(weight) for name, weight in got.items()}


def _time(got: Any, path: str) -> int:
    if not isinstance(got, datetime) or got.tzinfo is None:
        raise ScenarioError(f"{path}: expected a time with its zone (2026-01-05T00:00:00Z), "
                            f"got {got!r}")  # fmt: skip
    return int(got.timestamp())


def _wanted(hint: Any, one: Field[Any]) -> str:
    if one.metadata.get("choices"):
        return f"one of {', '.join(one.metadata['choices'])}"
    kind = {int: "an integer", float: "a number", str: "text", bool: "true or false"}.get(hint)
    if one.metadata.get("low") is None:
        return kind or "a table"
    return f"{kind} from {one.metadata['low']:,} to {one.metadata['high']:,}"
