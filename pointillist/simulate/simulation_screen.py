"""The live screen of a simulation: the released mix beside the truth; lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pointillist.run_terminal import FRAME, LESS, LiveStage, mix_table
from simulator.cell_view import CellView
from simulator.outcome import SectionCoverage, coverage_rows, percents


@dataclass(frozen=True, slots=True)
class Moment:
    """What one refresh shows.

    due, settled        windows (or rows of them) of the whole run and so far
    reporting, hosts    hosts whose reports count in the newest window, and all
    simulated_s         how much of the fleet's time is settled; wall_s: by the clock on the wall
    refused, kept_back  reason -> reports refused, windows of which nothing was released
    """

    name: str
    fidelity: str
    due: int
    settled: int
    time_s: int
    reporting: int
    hosts: int
    gpus: int
    busy_share: float
    simulated_s: float
    wall_s: float
    coverage: Sequence[SectionCoverage]
    refused: dict[str, int] = field(default_factory=dict)
    kept_back: dict[str, int] = field(default_factory=dict)
    latest: list[CellView] = field(default_factory=list)
    mean: list[CellView] = field(default_factory=list)
    section: str = "kernel_mix"


def render(moment: Moment, width: int) -> RenderableType:
    """The whole screen, on a terminal of `width` columns."""
    parts: list[RenderableType] = [_headline(moment), _progress(moment)]
    if moment.mean:
        parts.append(mix_table(moment.latest, moment.mean, width - FRAME))
    else:
        parts.append(Text("\nnothing released yet\n", "dim"))
    return Panel(
        Group(*parts, _footer(moment)),
        title=f"[bold]Pointillist simulate[/bold] · {moment.name} · {moment.fidelity}",
        subtitle=f"[dim]{moment.section.replace('_', ' ')} · every host is simulated[/dim]",
        border_style="magenta",
    )


def _headline(moment: Moment) -> Text:
    text = Text()
    text.append(f"{moment.reporting:,}", "bold")
    text.append(f" of {moment.hosts:,} hosts in the sum · {moment.gpus:,} GPUs, ")
    text.append(f"{100 * moment.busy_share:.0f} % busy · ")
    text.append(f"{datetime.fromtimestamp(moment.time_s, UTC):%a %d %b %H:%M} UTC", "bold yellow")
    return text


def _progress(moment: Moment) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(total=max(moment.due, 1), completed=moment.settled, width=40),
        f"{moment.settled:,} of {moment.due:,} · {speed(moment)} · {left(moment)}",
    )
    return row


def speed(moment: Moment) -> str:
    """Say how much faster than real time the fleet is played."""
    if moment.wall_s <= 0:
        return "from the checkpoint"
    return f"{moment.simulated_s / moment.wall_s:,.0f} x real time"


def left(moment: Moment) -> str:
    """Say how long the rest takes at the pace so far."""
    if not moment.settled or moment.wall_s <= 0:
        return "…"
    seconds = moment.wall_s / moment.settled * (moment.due - moment.settled)
    return f"{seconds:.0f} s left" if seconds < 120 else f"{seconds / 60:.0f} min left"


def _footer(moment: Moment) -> Text:
    text = Text()
    for total in moment.coverage[:1]:
        told = percents(coverage_rows(moment.coverage))
        text.append(f"{100 * total.values.rate:.1f} % of the 95 % intervals hold the truth")
        text.append(f"; worst first: {told}\n", "dim")
    text.append(f"refused reports: {counted(moment.refused)}", "dim")
    if moment.latest:
        text.append(f"\n{LESS}", "dim")
    if moment.kept_back:
        text.append(f"\nwindows not released: {counted(moment.kept_back)}", "bold red")
    return text


def counted(counts: dict[str, int]) -> str:
    """`reason 12, other 3`."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def line(moment: Moment) -> str:
    """One line for a screen that is no terminal."""
    told = (
        f"{moment.settled} of {moment.due}: {moment.reporting:,} of {moment.hosts:,} hosts, "
        f"{speed(moment)}"
    )
    return told + (f", not released: {counted(moment.kept_back)}" if moment.kept_back else "")


_EVERY_S: Final = 0.25
_LINE_EVERY_S: Final = 10.0


class SimulationStage(LiveStage):
    """Shows moments until left."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet)
        self._shown_s = 0.0

    def show(self, moment: Moment) -> None:
        """Show a moment; the last one always, others as often as an eye or a log wants them."""
        now = time.monotonic()
        every = _EVERY_S if self._on_screen else _LINE_EVERY_S
        if self._quiet or (now - self._shown_s < every and moment.settled < moment.due):
            return
        self._shown_s = now
        if self._on_screen:
            self._live.update(render(moment, self._console.width), refresh=True)
        else:
            self._console.print(line(moment), highlight=False, soft_wrap=True)
