"""Rules of a catalogue file: each names the entry, what was expected and what came."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

_Member = TypeVar("_Member", bound=StrEnum)


class CatalogueError(ValueError):
    """A catalogue file breaks a rule; the message names the entry, the rule and what came."""


def need(holds: object, expected: str, got: object) -> None:
    """Raise CatalogueError where a rule does not hold."""
    if not holds:
        raise CatalogueError(f"expected {expected}, got {got}")


def need_range(value: object, low: int, high: int, what: str) -> None:
    """Raise CatalogueError for anything but an integer in [low, high]."""
    right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    need(right, f"{what} in {low}..{high}", value)


def need_table(raw: object, where: str) -> Mapping[str, Any]:
    """Return raw as the table that it has to be."""
    if not isinstance(raw, Mapping):
        raise CatalogueError(f"expected {where} as a table, got {type(raw).__name__}")
    return raw


def need_known(raw: object, known: Collection[str], where: str) -> None:
    """Raise CatalogueError for a key that no rule knows."""
    unknown = sorted(set(need_table(raw, where)) - set(known))
    need(not unknown, f"{where} of the keys {', '.join(sorted(known))}", ", ".join(unknown))


def need_names(raw: object, what: str) -> tuple[str, ...]:
    """Return a list of distinct names."""
    if not isinstance(raw, list) or not all(isinstance(one, str) and one for one in raw):
        raise CatalogueError(f"expected {what} as a list of names, got {raw}")
    need(len(set(raw)) == len(raw), f"{what} each once", "one twice")
    return tuple(raw)


def member(kinds: type[_Member], value: str, where: str) -> _Member:
    """Return the member of an enum by value."""
    try:
        return kinds(value)
    except ValueError:
        known = ", ".join(one.value for one in kinds)
        raise CatalogueError(f"expected {where} among {known}, got {value}") from None


def need_types(raw: Mapping[str, Any], types: Mapping[str, type], where: str) -> None:
    """Raise CatalogueError for a value of another type."""
    for key, value in raw.items():
        right = isinstance(value, types[key]) and not isinstance(value, bool)
        need(right, f"{where}: {key} as {types[key].__name__}", type(value).__name__)
