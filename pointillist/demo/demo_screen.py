"""The demo's live terminal table: released mix with error bars beside the truth."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pointillist.stage.cell_tables import PLUS_MINUS, mix_table
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
            mix_table(frame.latest, frame.mean, width),
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
    return Text(f"refused (planted by the demo): {refused or 'nothing yet'}\n{PLUS_MINUS}", "dim")
