"""Kernel families: the catalogue's class of a kernel's name, by ordered rules kept as data."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

from transport.settings.config import limited, read_tree

from .kernel_name import LONGEST_NAME, NameParts, name_parts

_CACHED_NAMES = 16_384
_SPOKEN = {
    "whole": "the name", "name": "the function's own name", "arguments": "its template arguments",
    "scope": "its namespaces",
}  # fmt: skip
_NOTHING = "no other rule matches"

UNKNOWN_APPLICATION = "unknown"
"""The application class of work that no rule attributes."""


@dataclass(frozen=True, slots=True)
class FamilyRule:
    """One rule: a name that holds `pattern` is of `family`, unless an earlier rule took it.

    where    the part of the name that is searched, a field of `NameParts`
    """

    id: str
    priority: int
    family: str
    pattern: re.Pattern[str]
    match: tuple[str, ...]
    where: str = limited("whole", choices=tuple(_SPOKEN))

    def search(self, parts: NameParts) -> re.Match[str] | None:
        """Look for the pattern in its part of a name."""
        return self.pattern.search(getattr(parts, self.where))


@dataclass(frozen=True, slots=True)
class _RulesFile:
    rules: tuple[FamilyRule, ...] = limited((), key="rule")

    def __post_init__(self) -> None:
        for what in ("id", "priority"):
            values = [str(getattr(rule, what)) for rule in self.rules]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"family rules share the {what} {', '.join(twice)}")


@dataclass(frozen=True, slots=True)
class _ApplicationsFile:
    pipeline_tags: Mapping[str, str]


class Explanation(NamedTuple):
    """Why a kernel is in its family: the rule, and the piece of the name that it found."""

    family: str
    rule: str
    why: str


class Candidate(NamedTuple):
    """A rule that matches a name too, and comes later."""

    family: str
    rule: str
    priority: int
    words: str


class FamilyRules:
    """The rules in order, with a bounded memory of the names seen."""

    def __init__(self, rules: tuple[FamilyRule, ...]) -> None:
        if not rules or rules[-1].pattern.pattern != "":
            raise ValueError("the last family rule must match every name (an empty pattern)")
        self.rules = rules
        self._find = lru_cache(maxsize=_CACHED_NAMES)(self._search)

    @classmethod
    def load(cls, path: Path | None = None, families: Collection[str] | None = None) -> Self:
        """Read the packaged rules, or those of a file.

        families   the names that a rule may give, None: any
        Raises     ValueError naming the rule at fault
        """
        source = path or Path(__file__).with_name("families.toml")
        rules = read_tree(_RulesFile, source).rules
        for rule in rules:
            if families is not None and rule.family not in families:
                raise ValueError(
                    f"{source}: rule[{rule.id}].family: {rule.family!r} is no family of the "
                    "catalogue"
                )
        return cls(tuple(sorted(rules, key=lambda rule: rule.priority)))

    def classify(self, kernel_name: str) -> tuple[str, str]:
        """Return (family, rule id) of a kernel."""
        rule = self.rules[self._find(kernel_name[:LONGEST_NAME])]
        return rule.family, rule.id

    def explain(self, kernel_name: str) -> Explanation:
        """Return the family of a kernel with the rule and the words that decided it."""
        name = kernel_name[:LONGEST_NAME]
        rule = self.rules[self._find(name)]
        found = rule.search(name_parts(name))
        words = found.group(0) if found else ""
        where = _SPOKEN[rule.where]
        why = f"found {words!r} in {where} (priority {rule.priority})" if words else _NOTHING
        return Explanation(rule.family, rule.id, why)

    def others(self, kernel_name: str) -> tuple[Candidate, ...]:
        """Return the rules that match as well and lost, in their order; the last is left out."""
        parts = name_parts(kernel_name[:LONGEST_NAME])
        found = [(rule, rule.search(parts)) for rule in self.rules[:-1]]
        matches = [Candidate(r.family, r.id, r.priority, m.group(0)) for r, m in found if m]
        return tuple(matches[1:])

    def _search(self, name: str) -> int:
        parts = name_parts(name)
        return next(i for i, rule in enumerate(self.rules) if rule.search(parts))


@lru_cache(maxsize=1)
def pipeline_applications() -> Mapping[str, str]:
    """Return the packaged table: pipeline tag of a model hub -> application class."""
    source = Path(__file__).with_name("applications.toml")
    return read_tree(_ApplicationsFile, source).pipeline_tags
