"""Takes the keys of a probe table out of TOML, with their types and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar, cast

from .meanings import (
    MAX_ELEMENT_SIZES,
    MAX_OFFSET,
    MAX_SLOT,
    ArgumentPlace,
    Meaning,
    ProbeTableError,
)

_T = TypeVar("_T")
_E = TypeVar("_E", bound=StrEnum)


class TableReader:
    """Takes known keys out of one TOML table, with their types; `done` refuses the rest."""

    def __init__(self, where: str, content: Mapping[str, Any]) -> None:
        self._where, self._left = where, dict(content)

    def error(self, text: str) -> ProbeTableError:
        """Make an error that says where."""
        return ProbeTableError(f"{self._where}: {text}")

    def take(self, key: str, kind: type[_T], default: _T) -> _T:
        """Take a value of a type."""
        value = self._left.pop(key, default)
        if not isinstance(value, kind):
            raise self.error(f"{key}: expected {kind.__name__}, got {value!r}")
        return value

    def text(self, key: str, form: re.Pattern[str]) -> str:
        """Take a name of a form."""
        value = self.take(key, str, "")
        if not form.fullmatch(value):
            raise self.error(f"{key}: expected a name like {form.pattern}, got {value!r}")
        return value

    def expression(self, key: str) -> str:
        """Take a regular expression, empty where there is none."""
        value = self.take(key, str, "")
        try:
            re.compile(value)
        except re.error as error:
            raise self.error(f"{key}: {value!r} is no regular expression: {error}") from None
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of strings that are not empty."""
        value = self.take(key, list, [])
        if not all(isinstance(item, str) and item for item in value):
            raise self.error(f"{key}: expected a list of strings, got {value!r}")
        return tuple(cast("list[str]", value))

    def member(self, key: str, kind: type[_E], default: _E | None) -> _E:
        """Take one of a few words."""
        value = self.take(key, str, default or "")
        try:
            return kind(value)
        except ValueError:
            raise self.error(f"{key}: expected one of {', '.join(kind)}, got {value!r}") from None

    def sizes(self, key: str) -> tuple[int, ...]:
        """Take the sizes of elements."""
        value = self.take(key, list, [])
        if len(value) > MAX_ELEMENT_SIZES or not all(
            type(number) is int and 0 <= number <= 255 for number in value
        ):
            raise self.error(
                f"{key}: expected at most {MAX_ELEMENT_SIZES} numbers of 0 to 255, got {value!r}"
            )
        return tuple(value)

    def arguments(self) -> Mapping[Meaning, ArgumentPlace]:
        """Take the places of arguments."""
        found: dict[Meaning, ArgumentPlace] = {}
        for key, value in self.take("arguments", dict, {}).items():
            if key not in set(Meaning):
                raise self.error(f"arguments: expected one of {', '.join(Meaning)}, got {key!r}")
            parts = value if isinstance(value, list) else [value]
            if not 1 <= len(parts) <= 2 or not all(type(part) is int for part in parts):
                raise self.error(f"arguments.{key}: expected slot or [slot, offset], got {value!r}")
            place = ArgumentPlace(*parts)
            if not 0 <= place.slot <= MAX_SLOT or not 0 <= (place.offset or 0) <= MAX_OFFSET:
                raise self.error(
                    f"arguments.{key}: expected a slot of 0 to {MAX_SLOT} and an offset of 0 to "
                    f"{MAX_OFFSET}, got {value!r}"
                )
            found[Meaning(key)] = place
        return found

    def done(self) -> None:
        """Refuse what is left."""
        if self._left:
            raise self.error(f"unknown keys: {', '.join(sorted(self._left))}")
