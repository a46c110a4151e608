"""What demos and simulations show in a terminal: a live screen, cells beside their truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aggregator.discoveries import FALSE_DISCOVERY_RATE
from simulator.cell_view import CellView, ranked


class LiveStage:
    """The frame of a stage; its children say what they show.

    quiet   show nothing at all: a script reads the JSON at the end
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False)
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

LESS: Final = "< : not told from zero, and less than the end of its 95 % interval"
RATE: Final = f"{100 * FALSE_DISCOVERY_RATE:g} %"
"""Of rows told from zero, how many are expected to be empty at most."""

ROWS = 14
SHOWN = 12
"""Rows of each table and of each part of the chart at a demo's end."""
REST = frozenset({"idle", "unmeasured"})
BAR_CELLS = 24
WIDE = 100
"""Columns from which there is room for bars."""

Writer = Callable[[float], str]
"""Writes a share as the table's unit."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One release of an event section: its cells as shares of the hosts accepted in its window."""

    hosts: int
    views: list[CellView]


def mix_table(newest: list[CellView], mean: list[CellView], width: int) -> Table:
    """The kernel mix; ± is half of the 95 % interval. A narrow screen goes without bars."""
    table = Table(expand=True, box=None, pad_edge=False)
    table.add_column("GPU time, %", no_wrap=True)
    table.add_column("truth", justify="right", style="green", no_wrap=True)
    table.add_column("this window ±", justify="right", no_wrap=True)
    table.add_column("mean so far ±", justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column("released mean", min_width=BAR_CELLS, no_wrap=True)
    latest = {view.cell: view for view in newest}
    for view in ranked(mean)[:ROWS]:
        row = _row(view, latest.get(view.cell))
        table.add_row(*(row if width >= WIDE else row[:-1]))
    return table


def _row(mean: CellView, latest: CellView | None) -> tuple[RenderableType, ...]:
    return (
        Text(readable(mean.cell)),
        share(mean.truth),
        Text("…") if latest is None else _value(latest),
        _value(mean),
        _bar(mean),
    )


def share(value: float) -> str:
    """A share as percent, without the sign."""
    return f"{100 * value:.2f}"


def _value(view: CellView) -> Text:
    return Text(f"{with_error(view):>13}", "" if view.told else "dim")


def with_error(view: CellView) -> str:
    """A released share and half of its interval as percent, or what it is less than."""
    if not view.told:
        return f"< {share(view.most)}"
    return f"{share(view.share)} ± {share(view.half)}"


def _bar(view: CellView) -> Text:
    if not view.told:
        return Text("·", "dim")
    filled = min(BAR_CELLS, max(1, round(view.share * 2 * BAR_CELLS)))
    return Text("█" * filled, "cyan")


def families(mean: list[CellView]) -> list[CellView]:
    """Give the rows of the kernel mix that chart and farewell both show: no idle time."""
    return [view for view in ranked(mean) if view.cell not in REST][:SHOWN]


def readable(cell: str) -> str:
    """A cell's name as a person says it: gpu_time/gemm -> gemm."""
    return cell.removeprefix("gpu_time/").replace("_", " ")


def in_hosts(hosts: int) -> Writer:
    """Write a share of so many hosts as their number."""
    return lambda value: f"{value * hosts:,.0f}"


def prose(console: Console, text: str) -> None:
    """Print text that a terminal wraps at words, and a file not at all."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def cells_table(title: str, shown: list[CellView], write: Writer, write_error: Writer) -> Table:
    """Cells as they were released or less than what, half of their intervals, and the truth."""
    table = plain_table(title)
    for heading in ("released", "±", "truth"):
        table.add_column(heading, justify="right")
    for view in shown:
        less = Text(f"< {write(view.most)}", "dim")
        released = Text(write(view.share)) if view.told else less
        error = write_error(view.half)
        name = Text(readable(view.cell), style="not bold")
        table.add_row(name, released, error, Text(write(view.truth), "green"))
    return table


def plain_table(title: str) -> Table:
    """A table of rows with a name, without lines; the title heads the names."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, style="bold", min_width=34)
    return table


def tell_cells(
    console: Console, title: str, shown: list[CellView], views: list[CellView], write: Writer
) -> None:
    """Print some cells, and how many of all are told from zero.

    write   a share, as the table's unit
    """
    console.print(cells_table(title, shown, write, write))
    console.print(
        f"{_told(shown, views)} told from zero; of such rows at most {RATE} are expected to be "
        "empty\n",
        style="dim",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def _told(shown: list[CellView], views: list[CellView]) -> str:
    """Say how many cells are told from zero, and how many of them had no room."""
    told = sum(view.told for view in views)
    hidden = told - sum(view.told for view in shown)
    return f"{told} of {len(views)} cells" + (f", {hidden} not shown," if hidden else "")


def tell_files(
    console: Console, files: Mapping[str, object], commands: Iterable[str], width: int
) -> None:
    """Print what is where, names so many columns wide, and what to try next."""
    console.print("\n[bold]Files[/bold]")
    for name, path in files.items():
        console.print(f"{name:{width}} {path}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Try next[/bold]")
    for command in commands:
        console.print(command, highlight=False, soft_wrap=True, markup=False)
