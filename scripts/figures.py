"""Write the figures that pages quote from committed results, or check that they are as they stand.

python -m scripts.figures            rewrites docs/*.md and wire/SPEC.md in place
python -m scripts.figures --check    exit code 1 where a page differs, or has a figure of nobody's

A page marks what is generated. Within a line, an expression and how it is written:

    It takes <!--= agent.agent_rss_mib:.0f -->134<!--/--> MiB

never at the beginning of a line, where a comment ends the paragraph,

and for a table or a paragraph a Jinja template, on lines of its own, and what came of it:

    <!-- figures
    {% for row in diagnosis_gpu.tables.by_cause %}...{% endfor %}
    -->
    ...
    <!-- /figures -->

README.md is read as it stands and has no marks: its figures are typed, and `quoted` in stated.toml
names the result that each is held to.

Names are those of bench/results: `agent.NAME` is the value of the figure NAME in agent.json,
`goal.agent.NAME` its goal, `agent.tables` its tables, `about.agent.date` (`commit`, `device`,
`command`) where it comes from, `incident_rates` the aggregator's file of that name.
`over(value, goal)` and `short(value, goal)` say "missed" where a value is above or below its goal.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from scripts.page_blocks import with_blocks

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
ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "bench" / "results"
RATES: Final = ROOT / "aggregator" / "statistics" / "incident_rates.json"
STATED: Final = ROOT / "scripts" / "stated.toml"
CODE: Final = r"^```.*?^```|`[^`\n]+`"
_MARK: Final = re.compile(
    rf"(?P<code>{CODE})"
    r"|(?P<head><!--=(?P<expression>[^\n]*?)-->)(?P<value>[^\n]*?)<!--/-->"
    r"|(?P<open>^<!-- figures\n(?P<template>.*?)\n-->\n)(?P<block>.*?)^<!-- /figures -->",
    re.MULTILINE | re.DOTALL,
)
_STYLED: Final = re.compile(r"(.+):([^\[\](){}'\"]*)")
_LEFT_OVER: Final = re.compile(r"<!--=|<!--/-->|<!-- /?figures")
MISSED: Final = ": **missed**"
Context = Mapping[str, Any]


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


class FigureError(Exception):
    """A mark on a page that cannot be filled: its message names page, line and mark."""


def context_of(results: Path) -> Context:
    """Give what expressions may name: figures, their goals and their origin, by result file."""
    context: dict[str, Any] = {
        "goal": {}, "about": {}, "max": max, "min": min, "abs": abs,
        "over": lambda value, goal: MISSED if value > goal else "",
        "short": lambda value, goal: MISSED if value < goal else "",
    }  # fmt: skip
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        figures = document.pop("figures")
        context[path.stem] = {one["name"]: one["value"] for one in figures}
        context[path.stem]["tables"] = document.pop("tables", {})
        context["goal"][path.stem] = {one["name"]: one["goal"] for one in figures}
        context["about"][path.stem] = document
    context["incident_rates"] = json.loads(RATES.read_text(encoding="utf-8"))
    return context


def _before(found: re.Match[str]) -> str:
    """Give what stands before a mark on its line."""
    return found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()].strip()


class Pages:
    def __init__(self, context: Context) -> None:
        self._context = context
        # Nothing is escaped: what is written is Markdown of this repository.
        self._jinja = SandboxedEnvironment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
        )
        self._jinja.filters["by"] = format

    def fill(self, name: str, text: str) -> str:
        """Give the page with what its marks say.

        Raises      FigureError naming the page, the line and the mark
        """

        def replaced(found: re.Match[str]) -> str:
            line = text.count("\n", 0, found.start()) + 1
            try:
                return self._replaced(found)
            except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
                raise FigureError(f"{name}:{line}: {error}") from error

        filled = _MARK.sub(replaced, text)
        bare = _MARK.sub("", filled)
        if (broken := _LEFT_OVER.search(bare)) is not None:
            raise FigureError(f"{name}: expected a whole mark, got {broken[0]!r} alone")
        return filled

    def misquoted(self, name: str, quoted: Mapping[str, str]) -> list[str]:
        """Name each quantity of a page without marks whose number is not that of its result.

        quoted      quantity -> mark
        Raises      FigureError for a mark that names no result
        """
        wrong = []
        for quantity, mark in quoted.items():
            try:
                number = self._value(mark)
            except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
                raise FigureError(f"{name}: {mark}: {error}") from error
            if number not in quantity.split():
                wrong.append(f'{name}: has "{quantity}", bench/results {number} ({mark})')
        return wrong

    def _replaced(self, found: re.Match[str]) -> str:
        if found["code"] is not None:
            return found[0]
        if found["expression"] is not None:
            if not _before(found):
                raise ValueError("expected text before the mark: a comment there ends a paragraph")
            return f"{found['head']}{self._value(found['expression'])}<!--/-->"
        made = self._jinja.from_string(found["template"]).render(self._context)
        return f"{found['open']}{made.strip()}\n<!-- /figures -->"

    def _value(self, mark: str) -> str:
        styled = _STYLED.fullmatch(mark.strip())
        expression, style = styled.groups() if styled else (mark.strip(), "")
        value = self._jinja.compile_expression(expression, undefined_to_none=False)(**self._context)
        if isinstance(value, StrictUndefined):
            str(value)  # raises, and says which name
        return format(value, style)


def generated(text: str) -> str:
    """Give a page without code and without what is generated."""
    return _MARK.sub(lambda found: "\n" * found[0].count("\n"), text)


def pages() -> list[Path]:
    docs = sorted((ROOT / "docs").glob("*.md"))
    return [ROOT / "README.md", ROOT / "SECURITY.md", *docs, ROOT / "wire" / "SPEC.md"]


def review(write: bool) -> list[str]:
    """Fill every page and say what is wrong: stale, a mark that cannot be filled, typed by hand.

    write       put right what can be put right
    """
    filler, stated = Pages(context_of(RESULTS)), Stated.load(STATED)
    wrong: list[str] = []
    for path in pages():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        try:
            fresh = filler.fill(name, with_blocks(name, text))
        except (FigureError, ValueError) as error:
            wrong.append(str(error))
            continue
        wrong += stated.objections(name, generated(text))
        wrong += filler.misquoted(name, stated.quoted.get(name, {}))
        if write and fresh != text:
            path.write_text(fresh, encoding="utf-8")
        elif fresh != text:
            wrong.append(f"{name}: quotes other figures than bench/results or code: make figures")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    wrong = review(write=not parser.parse_args().check)
    if wrong:
        print("\n".join([*wrong, _ADVICE]), file=sys.stderr)
    return bool(wrong)


_ADVICE: Final = (
    "docs/contributing.md says how a page quotes bench/results; what nobody measured (a parameter, "
    "a limit, a published figure) is stated in scripts/stated.toml"
)


if __name__ == "__main__":
    sys.exit(main())
