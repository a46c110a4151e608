"""The demo's live screen: released mix with error bars beside the truth; lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pointillist.run_terminal import (
    FRAME,
    LESS,
    PLUS_MINUS,
    LiveStage,
    families,
    mix_table,
    readable,
    with_error,
)
from simulator.cell_view import CellView, listed


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


def render(frame: DemoScreen, width: int) -> RenderableType:
    """The whole screen for one frame, on a terminal of `width` columns."""
    return Panel(
        Group(
            _headline(frame),
            _progress(frame),
            mix_table(frame.latest, frame.mean, width - FRAME),
            _footer(frame),
        ),
        title="[bold]Pointillist demo[/bold] · see the fleet, never the machine",
        subtitle="[dim]throw-away identities, budget and roster · label: demo[/dim]",
        border_style="cyan",
    )


def _headline(frame: DemoScreen) -> Text:
    text = Text()
    if frame.window:
        text.append(f"{frame.hosts:,}", "bold")
        text.append(f" of {frame.roster:,} hosts in the sum · ")
    else:
        text.append(f"{frame.roster:,} hosts · ")
    text.append(f"{frame.gpus:,} GPUs · ")
    text.append(f"epsilon spent {frame.epsilon_spent:.2f} of {frame.epsilon:g}", "bold yellow")
    text.append(f" · {frame.stage}")
    return text


def _progress(frame: DemoScreen) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(total=frame.windows, completed=frame.window, width=50),
        f"window {frame.window} of {frame.windows}",
    )
    return row


def _footer(frame: DemoScreen) -> Text:
    refused = listed(frame.rejections)
    planted = f"refused (planted by the demo): {refused or 'nothing yet'}"
    text = Text(f"{planted}\n{PLUS_MINUS}\n{LESS}", "dim")
    for line in page_lines(frame.pages):
        text.append(f"\n{line}", "not dim cyan")
    return text


def page_lines(pages: Mapping[str, str]) -> list[str]:
    """Say where what is shown in a browser."""
    return [f"{address}   {name} in a browser" for name, address in pages.items()]


class DemoStage(LiveStage):
    """Shows frames until left."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet)
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
            self._live.update(render(frame, self._console.width), refresh=True)
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
