"""The demo's live screen: released mix with error bars beside the truth; lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console, ConsoleRenderable, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pointillist.run_terminal import (
    FRAME,
    LESS,
    PLUS_MINUS,
    ROWS,
    LiveStage,
    families,
    mix_table,
    readable,
    with_error,
)
from simulator.cell_view import CellView, listed

from .demo_pages import page_line

AROUND: Final = 4
"""Rows that are not the panel's own: two borders, the line below, and the cursor's at the end."""
LEAST_ROWS: Final = 4
"""Rows of the table, with its head, for which what explains it gives way on a low terminal."""


@dataclass(frozen=True, slots=True)
class DemoScreen:
    """What one refresh of the screen shows.

    window, windows      released windows so far and planned
    hosts, roster        accepted hosts of the newest window, hosts in the roster
    epsilon_spent        of the run's whole epsilon
    rejections           reason -> count, at the Leader and the Helper
    latest, mean         newest window and running mean of the kernel mix
    pages                what is shown in a browser -> address
    """

    window: int
    windows: int
    hosts: int
    roster: int
    gpus: int
    epsilon: float
    epsilon_spent: float
    rejections: dict[str, int]
    latest: list[CellView]
    mean: list[CellView]
    stage: str
    pages: Mapping[str, str] = field(default_factory=dict)


def render(frame: DemoScreen, console: Console) -> RenderableType:
    """The whole screen for one frame, in the rows and columns that the terminal has.

    A terminal writes ^C where the cursor is: behind the line below the panel, where it has room.
    """
    panel = Panel(
        Group(*_fitted(frame, console)),
        title="[bold]Pointillist demo[/bold] · see the fleet, never the machine",
        subtitle="[dim]throw-away identities, budget and roster · label: demo[/dim]",
        border_style="cyan",
    )
    return Group(panel, Text("Ctrl-C ends it", "dim"))


def _fitted(frame: DemoScreen, console: Console) -> list[ConsoleRenderable]:
    """Give the parts that have room: the addresses first, then as much of the table as there is."""
    width = console.width - FRAME
    options = console.options.update(width=width)

    def rows(parts: list[ConsoleRenderable]) -> int:
        return sum(len(console.render_lines(part, options)) for part in parts)

    above: list[ConsoleRenderable] = [Text(line, "cyan") for line in page_lines(frame.pages)]
    above += [_headline(frame), _progress(frame)]
    room = console.height - AROUND - rows(above)
    explained: list[ConsoleRenderable] = [_refused(frame), Text(f"{PLUS_MINUS}\n{LESS}", "dim")]
    while explained and room - rows(explained) < LEAST_ROWS:
        del explained[0]
    for most in range(ROWS, 0, -1):
        table = mix_table(frame.latest, frame.mean, width, most)
        if rows([table, *explained]) <= room:
            return [*above, table, *explained]
    return above


def _headline(frame: DemoScreen) -> Text:
    text = Text()
    if frame.window:
        text.append(f"{frame.hosts:,}", "bold")
        text.append(f" of {frame.roster:,} hosts in the sum · ")
    else:
        text.append(f"{frame.roster:,} hosts · ")
    text.append(f"{frame.gpus:,} GPUs · ")
    text.append(f"epsilon spent {frame.epsilon_spent:.2f} of {frame.epsilon:g}", "bold yellow")
    return text


def _progress(frame: DemoScreen) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(total=frame.windows, completed=frame.window, width=30),
        f"window {frame.window} of {frame.windows} · {frame.stage}",
    )
    return row


def _refused(frame: DemoScreen) -> Text:
    refused = listed(frame.rejections)
    return Text(f"refused (planted by the demo): {refused or 'nothing yet'}", "dim")


def page_lines(pages: Mapping[str, str]) -> list[str]:
    """Say where what is shown in a browser, a line each."""
    return [page_line(name, address) for name, address in pages.items()]


class DemoStage(LiveStage):
    """Shows frames until left; what the run ends with then has the screen."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet, transient=True)
        self._last = -1
        self._told: frozenset[str] = frozenset()

    def say(self, text: str) -> None:
        """Show one line before there is anything to draw."""
        if self._on_screen:
            self._live.update(Text(text), refresh=True)
        elif not self._quiet:
            self._console.print(text)

    def show(self, frame: DemoScreen) -> None:
        """Show a frame; without a terminal, a line for every new window."""
        if self._on_screen:
            self._live.update(render(frame, self._console), refresh=True)
        elif not self._quiet:
            self._show_lines(frame)

    def _show_lines(self, frame: DemoScreen) -> None:
        new = {name: at for name, at in frame.pages.items() if name not in self._told}
        self._told |= new.keys()
        lines = page_lines(new)
        if frame.window != self._last:
            self._last = frame.window
            lines.append(_line(frame))
        for line in lines:
            self._console.print(line, highlight=False, soft_wrap=True)


def _line(frame: DemoScreen) -> str:
    if not frame.window:
        return f"{frame.roster:,} hosts enrolled, {frame.stage}"
    above = [view for view in families(frame.latest) if view.told]
    numbers = "".join(f"{readable(view.cell)} {with_error(view)} %, " for view in above[:1])
    return (
        f"window {frame.window} of {frame.windows}: {numbers}{frame.hosts:,} of {frame.roster:,} "
        f"hosts, epsilon {frame.epsilon_spent:.2f} of {frame.epsilon:g}"
    )
