"""Read a TOML table into a tree of frozen dataclasses; an unknown key is an error, not a shrug."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

MOST_BYTES: Final = 1 << 20

_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bytes: "lower-case hex in quotes",
    Path: "a path in quotes",
}


class ConfigError(ValueError):
    """A configuration that cannot be used; says where, what was expected and what came."""


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML file, of MOST_BYTES at most.

    Raises      ConfigError, OSError
    """
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{path}: expected at most {MOST_BYTES} bytes, got more")
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error


def build(kind: type[_T], table: Mapping[str, Any], where: str = "") -> _T:
    """Build a dataclass from a table: sections are dataclasses, arrays of tables are tuples.

    where   what stands before each key in a message: `FILE: `, `FILE: section.`
    Raises      ConfigError
    """
    names = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in names:
            raise ConfigError(f"{where}{key}: expected one of {', '.join(names)}")
    hints = typing.get_type_hints(kind)
    values = {key: _value(hints[key], value, f"{where}{key}") for key, value in table.items()}
    for name, field in names.items():
        unset = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if unset and name not in values:
            raise ConfigError(f"{where}{name}: expected a value, found none")
    try:
        return kind(**values)
    except ValueError as error:
        place = where.removesuffix(".").removesuffix(": ") or "configuration"
        raise ConfigError(f"{place}: {error}") from error


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one tree of tables over another: tables are merged, anything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = overlay(old, value)
        else:
            merged[key] = value
    return merged


def assignment(text: str) -> dict[str, Any]:
    """Read `section.key=value` from the command line, the value as in TOML or a bare word.

    Raises      ConfigError
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"expected section.key=value, got {text!r}")
    try:
        return tomllib.loads(f"{path.strip()} = {value.strip()}")
    except tomllib.TOMLDecodeError:
        quoted = json.dumps(value.strip())
    try:
        return tomllib.loads(f"{path.strip()} = {quoted}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"expected section.key=value, got {text!r}: {error}") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: expected an array, got {_said(value)}")
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(hint, types.UnionType):
        hint = next(choice for choice in typing.get_args(hint) if choice is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: expected a table, got {_said(value)}")
        return build(typing.cast(type[Any], hint), value, f"{where}.")
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ConfigError(f"{where}: expected lower-case hex") from None
    # bool is an int to Python; to a reader of a configuration it is not.
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: expected {_WORDS[hint]}, got {_said(value)}")
    return value


def _said(value: Any) -> str:
    """Say a value as a TOML file would: no secret stands in a configuration, only paths to them."""
    if isinstance(value, Mapping):
        return "a table"
    return json.dumps(value, default=str)[:80]
