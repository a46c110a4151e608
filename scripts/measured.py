"""Which numbers on a page look measured, and which of them are known to be something else.

A page that carries results (`results` in stated.toml) may hold no quantity that is not generated:
a number with a unit, a decimal, "61 of 81", a cell of a table that is a number. On every other
page, where parameters and limits are the rule, that holds for numbers with a unit in sentences and
cells that speak of measuring. What was not measured here is stated by name in stated.toml, page by
page: a parameter, a limit, a definition, a figure that others published.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_NUMBER: Final = r"[−-]?\d[\d,]*(?:\.\d+)?(?:[eE][−-]?\d+)?"
_UNIT: Final = (
    r"(?:%|‰|percent|[nµum]?s|seconds?|minutes?|min|hours?|h|days?|[kKMGT]i?B|bytes|times"
    r"|(?:core|worker|GPU)-(?:seconds?|hours?)|cores?|cpus?|Gbit/s)(?![\w/-])"
)
_ALONE: Final = r"(?<![\w.,/#^⁻×–-])"
_WITH_UNIT: Final = re.compile(rf"{_ALONE}{_NUMBER}\s?{_UNIT}")
_STRICT: Final = re.compile(
    rf"{_WITH_UNIT.pattern}|{_ALONE}\d+(?:,\d{{3}})* of (?:the )?\d+(?:,\d{{3}})*(?![\w.])"
    rf"|{_ALONE}\d+\.\d+(?![\w.])"
)
_CELL: Final = re.compile(rf"(?<=\|)\s*\**({_NUMBER}(?:\s?(?:±|to|/)\s?{_NUMBER})*)\**\s*(?=\|)")
_MEASURING: Final = re.compile(
    r"\b(measured|median|percentile|on average|took|of a core|slower|faster|dearer"
    r"|takes?|costs?|overhead|slowdown)\b",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"(?<=[.;|])\s+")
_NOT_PROSE: Final = re.compile(
    r"\]\([^)\s]*\)|<!--.*?-->|<[^>\n]+>|^\|[-:| ]+\|$"
    r"|\b(?:Linux|[Kk]ernel|Python|CUDA|runtime|libbpf\d?|version) \d+(?:\.\d+)*",
    re.MULTILINE,
)
"""Addresses, comments, rules of tables, and versions."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Quantities that no benchmark of this repository measured.

    results     names of pages that carry results
    pages       page -> quantities, as they stand there
    quoted      page -> quantity of a result, as it stands there -> the mark that would write its
                number: for a page that is read as it is, and has no marks
    """

    results: frozenset[str]
    pages: Mapping[str, Sequence[str]]
    quoted: Mapping[str, Mapping[str, str]]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read stated.toml."""
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(frozenset(content["results"]), content["pages"], content["quoted"])

    def objections(self, name: str, text: str) -> list[str]:
        """Name each quantity of a page that is neither generated nor stated, and what is stale.

        text        the page without code and without what is generated
        """
        known, seen = {*self.pages.get(name, ()), *self.quoted.get(name, ())}, set()
        found = []
        for line, quantity in quantities(text, strict=name in self.results):
            seen.add(quantity)
            if quantity not in known:
                found.append(f'{name}:{line}: "{quantity}" is typed by hand')
        plain = " ".join(text.split())
        seen |= {quantity for quantity in self.quoted.get(name, ()) if quantity in plain}
        stale = [f'{name}: stated.toml has "{one}", the page not' for one in sorted(known - seen)]
        return found + stale


def quantities(text: str, strict: bool) -> Iterator[tuple[int, str]]:
    """Give what looks measured, with its line; spaces are single."""
    bare = _NOT_PROSE.sub(lambda found: "\n" * found[0].count("\n") + " ", text)
    if strict:
        for pattern in (_STRICT, _CELL):
            for found in pattern.finditer(bare):
                yield _told(bare, found.start(), found[found.lastindex or 0])
        return
    at = 0
    for sentence in _SENTENCE.split(bare):
        at = bare.index(sentence, at)
        if _MEASURING.search(sentence):
            for found in _WITH_UNIT.finditer(sentence):
                yield _told(bare, at + found.start(), found[0])


def _told(text: str, at: int, quantity: str) -> tuple[int, str]:
    return text.count("\n", 0, at) + 1, " ".join(quantity.split())
