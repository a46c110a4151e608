"""What demos and simulations show in a terminal: a live screen, cells beside their truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from simulator.cell_view import CellView, ranked

from .table import Column, table_text


class LiveStage:
    """The frame of a stage; its children say what they show.

    quiet       show nothing at all: a script reads the JSON at the end
    transient   take the last frame off the screen at the end
    """

    def __init__(self, console: Console, *, quiet: bool, transient: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._on_screen = console.is_terminal and not quiet

    def __enter__(self) -> Self:
        if self._on_screen:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on_screen:
            self._live.stop()


NORMAL: Final = NormalDist()
Z95: Final = NORMAL.inv_cdf(0.975)
PLUS_MINUS: Final = "± is half of the 95 % interval: 1.96 standard errors"
"""What ± means wherever the demo writes it, and how long its error bars are to either side."""

LESS: Final = "< : not told from zero; what follows is the end of its 95 % interval"
RATE: Final = f"{100 * FALSE_DISCOVERY_RATE:g} %"
"""Of rows told from zero, how many are expected to be empty at most."""

NextCommand: TypeAlias = tuple[str, str]
"""What a command is for, in a few words, and the command."""

ROWS = 14
SHOWN = 12
"""Rows of each table and of each part of the chart at a demo's end."""
REST = frozenset({"idle", "unmeasured"})
BAR_CELLS = 24
FRAME = 4
"""Columns of a panel's frame."""
NAMES = 34
"""Columns of the names, so that tables below each other align."""

Writer = Callable[[float], str]
"""Writes a share as the table's unit."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One release of an event section: its cells as shares of the hosts accepted in its window."""

    hosts: int
    views: list[CellView]


def mix_table(newest: list[CellView], mean: list[CellView], width: int, most: int = ROWS) -> Text:
    """The kernel mix; ± is half of the 95 % interval. A narrow screen goes without bars.

    most    rows, of which those told from zero come first
    """
    latest = {view.cell: view for view in newest}
    rows = [(view, latest.get(view.cell)) for view in ranked(mean)[:most]]
    return table_text(_MIX, rows, width, "a wider terminal has them")


def share(value: float) -> str:
    """A share as percent, without the sign."""
    return f"{100 * value:.2f}"


def with_error(view: CellView) -> str:
    """A released share and half of its interval as percent, or what it is less than."""
    if not view.told:
        return f"< {share(view.most)}"
    return f"{share(view.share)} ± {share(view.half)}"


def _bar(view: CellView) -> str:
    filled = min(BAR_CELLS, max(1, round(view.share * 2 * BAR_CELLS)))
    return ("█" * filled if view.told else "·").ljust(BAR_CELLS)


def _style(view: CellView | None) -> str:
    return "" if view is None or view.told else "dim"


_Seen = tuple[CellView, CellView | None]
"""A cell's mean so far, and its newest window."""


def _newest(row: _Seen) -> str:
    return "…" if row[1] is None else with_error(row[1])


_MIX: Final = (
    Column("GPU time, %", lambda row: readable(row[0].cell), folds=True),
    Column("truth", lambda row: share(row[0].truth), right=True, style=lambda _: "green"),
    Column("this window ±", _newest, right=True, style=lambda row: _style(row[1])),
    Column(
        "mean so far ±", lambda row: with_error(row[0]), right=True,
        style=lambda row: _style(row[0]),
    ),
    Column("released mean", lambda row: _bar(row[0]), leaves=0, style=lambda _: "cyan"),
)  # fmt: skip


def families(mean: list[CellView]) -> list[CellView]:
    """Give the rows of the kernel mix that chart and farewell both show: no idle time."""
    return [view for view in ranked(mean) if view.cell not in REST][:SHOWN]


def readable(cell: str) -> str:
    """A cell's name as a person says it: gpu_time/gemm -> gemm.

    launch_share/gemm -> gemm by launches: it stands in one table with GPU time.
    """
    family = cell.removeprefix("gpu_time/").removeprefix("launch_share/").replace("_", " ")
    return f"{family} by launches" if cell.startswith("launch_share/") else family


def in_hosts(hosts: int) -> Writer:
    """Write a share of so many hosts as their number."""
    return lambda value: f"{value * hosts:,.0f}"


def prose(console: Console, text: str) -> None:
    """Print text that a terminal wraps at words, and a file not at all."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def name_column(title: str, write: Callable[[Any], str]) -> Column:
    """A table's first column, which its title heads."""
    return Column(title, write, folds=True, at_least=NAMES)


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Any]) -> None:
    """Print a table as wide as the console."""
    console.print(table_text(columns, rows, console.width, "a wider terminal has them"))


def tell_cells(
    console: Console, title: str, shown: list[CellView], views: list[CellView], write: Writer
) -> None:
    """Print some cells beside the truth, and how many of all are told from zero.

    write   a share, as the table's unit
    """

    print_cells(console, title, shown, write)
    console.print(
        f"{_told(shown, views)} told from zero; of such rows at most {RATE} are expected to be "
        "empty\n",
        style="dim",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def print_cells(console: Console, title: str, shown: list[CellView], write: Writer) -> None:
    """Print some cells beside the truth; `write` writes a share as the table's unit."""

    def released(view: CellView) -> str:
        return write(view.share) if view.told else f"< {write(view.most)}"

    columns = (
        name_column(title, lambda view: readable(view.cell)),
        Column("released", released, right=True, style=_style),
        Column("±", lambda view: write(view.half), right=True),
        Column("truth", lambda view: write(view.truth), right=True, style=lambda _: "green"),
    )
    print_table(console, columns, shown)


def _told(shown: list[CellView], views: list[CellView]) -> str:
    """Say how many cells are told from zero, and how many of them had no room."""
    told = sum(view.told for view in views)
    hidden = told - sum(view.told for view in shown)
    return f"{told} of {len(views)} cells" + (f", {hidden} not shown," if hidden else "")


def tell_files(
    console: Console, files: Mapping[str, object], commands: Iterable[NextCommand], width: int
) -> None:
    """Print what is where, names so many columns wide, and what to try next."""
    console.print("\n[bold]Files[/bold]")
    for name, path in files.items():
        console.print(f"{name:{width}} {near(path)}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Try next[/bold]")
    for told, command in commands:
        console.print(told, highlight=False, markup=False)
        console.print(f"  {command}", highlight=False, soft_wrap=True, markup=False)


def near(path: object) -> str:
    """Write a path below the working folder without that folder: it is shorter to read and type."""
    here = Path.cwd()
    found = Path(str(path))
    return str(found.relative_to(here) if found.is_relative_to(here) else found)
