"""Read TOML files into trees of frozen dataclasses, and lay settings over them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from transport.process.printable import printable

from .config_values import ConfigError, build, did_you_mean, limited

__all__ = [
    "ConfigError", "assignment", "build", "did_you_mean", "limited", "overlay",
    "parse_table", "read_table", "read_tree",
]  # fmt: skip

_T = TypeVar("_T")

MOST_BYTES: Final = 1 << 20


def read_table(
    path: Path,
    *,
    error: type[ValueError] = ConfigError,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """Read a TOML file, of MOST_BYTES at most.

    Raises      error, OSError
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    return parse_table(content, str(path), error=error, parse_float=parse_float)


def parse_table(
    content: bytes,
    where: str,
    *,
    error: type[ValueError] = ConfigError,
    most: int = MOST_BYTES,
    parse_float: Callable[[str], Any] = float,
) -> dict[str, Any]:
    """Read TOML, which may be a stranger's, of so many bytes at most.

    where       what it is called in a message
    Raises      error
    """
    if len(content) > most:
        raise error(f"{where}: expected at most {most:,} bytes, got more")
    try:
        return tomllib.loads(content.decode(), parse_float=parse_float)
    except RecursionError:
        raise error(f"{where}: expected TOML, got arrays or tables nested too deep") from None
    except ValueError as problem:  # of UTF-8, of TOML, and of numbers with thousands of digits
        raise error(f"{where}: expected TOML: {printable(str(problem))}") from problem


def read_tree(
    kind: type[_T],
    path: Path,
    *,
    error: type[ValueError] = ConfigError,
    file_format: int | None = None,
) -> _T:
    """Read a TOML file into a dataclass, as `build` does.

    Raises      error, also where the file cannot be read
    """
    try:
        table = read_table(path, error=error)
    except OSError as problem:
        raise error(f"{path}: {problem.strerror}") from None
    return build(kind, table, f"{path}: ", error=error, file_format=file_format)


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
