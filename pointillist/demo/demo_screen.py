"""The demo's live screen: released mix with error bars beside the truth; lines elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

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
    return Text(f"{planted}\n{PLUS_MINUS}\n{LESS}", "dim")


class DemoStage(LiveStage):
    """Shows frames until left."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet)
        self._last = -1

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
        elif not self._quiet and frame.window != self._last:
            self._last = frame.window
            self._console.print(_line(frame), highlight=False, soft_wrap=True)


def _line(frame: DemoScreen) -> str:
    if not frame.window:
        return f"{frame.roster:,} hosts enrolled, {frame.stage}"
    above = [view for view in families(frame.latest) if view.told]
    numbers = "".join(f"{readable(view.cell)} {with_error(view)} %, " for view in above[:1])
    return (
        f"window {frame.window} of {frame.windows}: {numbers}{frame.hosts:,} of {frame.roster:,} "
        f"hosts, epsilon {frame.epsilon_spent:.2f} of {frame.epsilon:g}"
    )
