"""The demo's live terminal table: released mix with error bars beside the truth."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .demo_tally import PLUS_MINUS, Z95, CellView

ROWS = 14
SHOWN = 12
"""Rows of each table and of each part of the chart at a demo's end."""
REST = frozenset({"idle", "unmeasured"})
BAR_CELLS = 24
WIDE = 100
"""Columns from which there is room for bars."""


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
        "…" if mean.truth is None else share(mean.truth),
        Text("…") if latest is None else _value(latest),
        _value(mean),
        _bar(mean),
    )


def share(value: float) -> str:
    """A share as percent, without the sign."""
    return f"{100 * value:.2f}"


def _value(view: CellView) -> Text:
    return Text(f"{with_error(view):>13}", "dim" if view.below_noise else "")


def with_error(view: CellView) -> str:
    """A released share and half of its interval as percent, without the sign."""
    if view.below_noise:
        return "below noise"
    return f"{share(view.released)} ± {share(Z95 * view.standard_error)}"


def _bar(view: CellView) -> Text:
    if view.below_noise:
        return Text("·", "dim")
    filled = min(BAR_CELLS, max(1, round(view.released * 2 * BAR_CELLS)))
    return Text("█" * filled, "cyan")


def _footer(frame: DemoScreen) -> Text:
    refused = ", ".join(f"{name} {count}" for name, count in sorted(frame.rejections.items()))
    return Text(f"refused (planted by the demo): {refused or 'nothing yet'}\n{PLUS_MINUS}", "dim")


def ranked(views: list[CellView]) -> list[CellView]:
    """Give the cells worth showing, largest by truth or by release first."""
    shown = [view for view in views if view.worth_showing]
    return sorted(shown, key=lambda view: view.rank, reverse=True)


def families(mean: list[CellView]) -> list[CellView]:
    """Give the rows of the kernel mix that chart and farewell both show: no idle time."""
    return [view for view in ranked(mean) if view.cell not in REST][:SHOWN]


def readable(cell: str) -> str:
    """A cell's name as a person says it: gpu_time/gemm -> gemm."""
    return cell.removeprefix("gpu_time/").replace("_", " ")
