"""What a run ends with for a person: a heading, tables, what to know of them, what to do next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from pointillist.table import Column, table_text
from simulator.cell_view import CellView

from .stage import faint, readable

RATE: Final = f"{100 * FALSE_DISCOVERY_RATE:g} %"
"""Of significant rows, how many are expected to be empty at most."""
NAMES: Final = 34
"""Columns of the names, so that tables below each other align."""

NextCommand: TypeAlias = tuple[str, str]
"""What a command is for, in a few words, and the command."""
Writer = Callable[[float], str]
"""Writes a share as the table's unit."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One release of an event section: its cells as shares of the hosts accepted in its window."""

    hosts: int
    views: list[CellView]


@dataclass(frozen=True, slots=True)
class CellTable:
    columns: Sequence[Column]
    rows: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a run.

    tables      with what is said between them, in rich's markup
    checks      what a reader should know before trusting a figure
    files       what it is -> path
    commands    that work on what the run has left
    """

    heading: str = ""
    tables: Sequence[CellTable | str] = ()
    checks: Sequence[str] = ()
    files: Mapping[str, object] = field(default_factory=dict)
    commands: Sequence[NextCommand] = ()


def print_summary(console: Console, summary: Summary) -> None:
    if summary.heading:
        console.rule(f"[bold]{summary.heading}")
    for part in (*summary.tables, *summary.checks):
        if isinstance(part, str):
            console.print(part, highlight=False, soft_wrap=not console.is_terminal)
        else:
            elsewhere = "a wider terminal has them"
            console.print(table_text(part.columns, part.rows, console.width, elsewhere))
    if summary.files:
        console.print("\n[bold]Files[/bold]")
        for name, path in summary.files.items():
            console.print(f"{name:12} {near(path)}", highlight=False, soft_wrap=True)
    if summary.commands:
        console.print("\n[bold]Try next[/bold]")
        for what, command in summary.commands:
            console.print(what, highlight=False, markup=False)
            console.print(f"  {command}", highlight=False, soft_wrap=True, markup=False)


def cell_table(title: str, shown: Sequence[CellView], write: Writer) -> CellTable:
    def released(view: CellView) -> str:
        return write(view.share) if view.told else f"< {write(view.most)}"

    columns = (
        name_column(title, lambda view: readable(view.cell)),
        Column("released", released, right=True, style=faint),
        Column("±", lambda view: write(view.half), right=True),
        Column("truth", lambda view: write(view.truth), right=True, style=lambda _: "green"),
    )
    return CellTable(columns, shown)


def told_line(shown: Sequence[CellView], views: Sequence[CellView]) -> str:
    """Say how many of a table's cells are significant, and how many of them had no room."""
    told = sum(view.told for view in views)
    hidden = told - sum(view.told for view in shown)
    cells = f"{told} of {len(views)} cells" + (f", {hidden} not shown," if hidden else "")
    return f"[dim]{cells} significant; of such rows at most {RATE} are expected to be empty[/dim]\n"


def name_column(title: str, write: Callable[[Any], str]) -> Column:
    return Column(title, write, folds=True, at_least=NAMES)


def in_hosts(hosts: int) -> Writer:
    return lambda value: f"{value * hosts:,.0f}"


def near(path: object) -> str:
    """Write a path below the working folder without that folder: it is shorter to read and type."""
    here = Path.cwd()
    found = Path(str(path))
    return str(found.relative_to(here) if found.is_relative_to(here) else found)
