"""What is shown while a fleet is played: one screen; lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from pointillist.table import Column, table_text
from simulator.cell_view import CellView, ranked

PLUS_MINUS: Final = "± is half of the 95 % interval: 1.96 standard errors"
"""What ± means wherever a run writes it, and how long its error bars are to either side."""
LESS: Final = "< : not significant; what follows is the end of its 95 % interval"

ROWS: Final = 14
SHOWN: Final = 12
"""Families and events that a run's texts and chart show."""
REST: Final = frozenset({"idle", "unmeasured"})
FRAME: Final = 4
"""Columns of a panel's frame."""
AROUND: Final = 4
"""Rows that are not the panel's own: two borders, the line below, and the cursor's at the end."""
LEAST_ROWS: Final = 4
"""Rows of the table, with its head, for which what explains it gives way on a low terminal."""
_BAR: Final = 24
_REDRAWN_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a run while it is played.

    title, subtitle, colour     of its panel; the title in rich's markup
    headline, note      the text above the bar, and the one beside it
    done, due           windows so far, and of the whole run
    latest, mean        cells of the newest window, and their running mean
    below               what explains the table; on a low terminal the first leaves first
    foot                a line below the panel
    line                all of it in one line, where there is no terminal
    pages               what is shown in a browser -> address
    """

    title: str
    subtitle: str
    colour: str
    headline: Text
    note: str
    done: int
    due: int
    latest: Sequence[CellView]
    mean: Sequence[CellView]
    below: Sequence[Text]
    line: str
    foot: str = ""
    pages: Mapping[str, str] = field(default_factory=dict)


class Stage:
    """Shows a run until left.

    quiet       show nothing at all: a script reads the JSON at the end
    transient   take the last screen away at the end
    line_s      seconds between two lines, where there is no terminal
    """

    def __init__(
        self, console: Console, *, quiet: bool, transient: bool = False, line_s: float = 0.0
    ) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False, transient=transient)
        self._on_screen = console.is_terminal and not quiet
        self._every_s = _REDRAWN_S if self._on_screen else line_s
        self._shown_s = float("-inf")
        self._done = -1
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        if self._on_screen:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_screen:
            self._live.stop()

    def say(self, text: str) -> None:
        if self._on_screen:
            self._live.update(Text(text), refresh=True)
        elif not self._quiet:
            self._console.print(text)

    def show(self, progress: Progress) -> None:
        """Show how far a run is: its last window always, others as often as a reader wants."""
        now_s = time.monotonic()
        soon = now_s - self._shown_s < self._every_s and progress.done < progress.due
        if self._quiet or soon:
            return
        if self._on_screen:
            self._shown_s = now_s
            self._live.update(screen(progress, self._console), refresh=True)
            return
        lines = [page_line(*page) for page in progress.pages.items() if page[0] not in self._told]
        self._told |= progress.pages.keys()
        if progress.done != self._done:
            self._done, self._shown_s = progress.done, now_s
            lines.append(progress.line)
        for line in lines:
            self._console.print(line, highlight=False, soft_wrap=True)


def page_line(name: str, address: str) -> str:
    """Say where what is shown in a browser."""
    return f"{address}   {name} in a browser"


def screen(progress: Progress, console: Console) -> RenderableType:
    """The whole screen, in the rows and columns that the terminal has.

    A terminal writes ^C where the cursor is: behind the line below the panel, where it has room.
    """
    panel = Panel(
        Group(*_fitted(progress, console)),
        title=progress.title,
        subtitle=f"[dim]{progress.subtitle}[/dim]",
        border_style=progress.colour,
    )
    return Group(panel, Text(progress.foot, "dim")) if progress.foot else panel


def _fitted(progress: Progress, console: Console) -> list[ConsoleRenderable]:
    width = console.width - FRAME
    options = console.options.update(width=width)

    def rows(parts: Sequence[ConsoleRenderable]) -> int:
        return sum(len(console.render_lines(part, options)) for part in parts)

    addresses = [Text(page_line(*page), "cyan") for page in progress.pages.items()]
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=max(progress.due, 1), completed=progress.done, width=30), progress.note
    )
    above: list[ConsoleRenderable] = [*addresses, progress.headline, bar]
    room = console.height - AROUND - rows(above)
    below = list(progress.below)
    while below and room - rows(below) < LEAST_ROWS:
        del below[0]
    if not progress.mean:
        return [*above, Text("\nnothing released yet\n", "dim"), *below]
    for most in range(ROWS, 0, -1):
        table = mix_table(progress.latest, progress.mean, width, most)
        if rows([table, *below]) <= room:
            return [*above, table, *below]
    return above


def mix_table(
    newest: Sequence[CellView], mean: Sequence[CellView], width: int, most: int = ROWS
) -> Text:
    """The kernel mix; ± is half of the 95 % interval. A narrow screen goes without bars.

    most    rows, of which significant ones come first
    """
    latest = {view.cell: view for view in newest}
    rows = [(view, latest.get(view.cell)) for view in ranked(mean)[:most]]
    return table_text(_MIX, rows, width, "a wider terminal has them")


def share(value: float) -> str:
    return f"{100 * value:.2f}"


def with_error(view: CellView | None) -> str:
    """A released share and half of its interval as percent, or what it is less than."""
    if view is None:
        return "…"
    if not view.told:
        return f"< {share(view.most)}"
    return f"{share(view.share)} ± {share(view.half)}"


def faint(view: CellView | None) -> str:
    """The style of a cell: what is not significant is dim."""
    return "" if view is None or view.told else "dim"


def _bar(view: CellView) -> str:
    filled = min(_BAR, max(1, round(view.share * 2 * _BAR)))
    return ("█" * filled if view.told else "·").ljust(_BAR)


_MIX: Final = (
    Column("GPU time, %", lambda row: readable(row[0].cell), folds=True),
    Column("truth", lambda row: share(row[0].truth), right=True, style=lambda _: "green"),
    Column(
        "this window ±", lambda row: with_error(row[1]), right=True, style=lambda row: faint(row[1])
    ),
    Column(
        "mean so far ±", lambda row: with_error(row[0]), right=True, style=lambda row: faint(row[0])
    ),
    Column("released mean", lambda row: _bar(row[0]), leaves=0, style=lambda _: "cyan"),
)
"""Of a cell's mean so far, and its newest window, None where it has none."""


def families(mean: Sequence[CellView]) -> list[CellView]:
    """Give the rows of the kernel mix that chart and texts both show: no idle time."""
    return [view for view in ranked(mean) if view.cell not in REST][:SHOWN]


def readable(cell: str) -> str:
    """A cell's name as a person says it: gpu_time/gemm -> gemm.

    launch_share/gemm -> gemm by launches: it stands in one table with GPU time.
    """
    family = cell.removeprefix("gpu_time/").removeprefix("launch_share/").replace("_", " ")
    return f"{family} by launches" if cell.startswith("launch_share/") else family


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
