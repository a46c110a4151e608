"""What a demo prints for a person at its end: a screen of it; `summary.json` has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.console import Console

from edge_agent.local.quantity import counted
from pages.wording import listed
from pointillist.run_terminal import (
    REST,
    Struck,
    families,
    in_hosts,
    near,
    print_cells,
    prose,
    share,
)
from simulator.cell_view import CellView, ranked

from .summary import Summary, pages_command

FAMILIES: Final = 5
EVENT_ROWS: Final = {"incidents": 3, "hardware_faults": 2, "applications_seen": 2}
"""Rows of each table: with 80 columns the end stays below 30 lines."""


def tell(
    console: Console,
    summary: Summary,
    mean: list[CellView],
    events: dict[str, Struck],
    *,
    early: bool = False,
) -> None:
    """Print the summary: the first rows of the chart, with the same numbers and intervals.

    early   a person ended the run
    """
    console.rule("[bold]What was learned about the fleet, and about no host")
    if summary.windows_released < summary.windows:
        _tell_lost(console, summary, early)
    title = f"GPU time by kernel family, mean of {counted(summary.windows_released, 'window')}"
    rest = [view for view in ranked(mean) if view.cell in REST]
    shown = [*rest, *families(mean)[:FAMILIES]]
    print_cells(console, title, shown, lambda value: share(value) + " %")
    for name, event in events.items():
        section = name.replace("_", " ").capitalize()
        if event.hosts:
            shown = ranked(event.views)[: EVENT_ROWS[name]]
            title = f"{section}, of {event.hosts:,} hosts"
            print_cells(console, title, shown, in_hosts(event.hosts))
        else:
            prose(console, f"{section}: the window was not released")
    for line in _explained(summary):
        prose(console, line)
    if summary.files:
        kept = near(Path(summary.files["summary"]).parent)
        prose(console, f"Chart, releases and summary.json with the rest: {kept}")
        prose(console, f"Later: {pages_command(near(summary.files['releases']))}")


def _tell_lost(console: Console, summary: Summary, early: bool) -> None:
    why = "you ended it" if early else "reports of the others came too late for this machine"
    released = f"{summary.windows_released} of {summary.windows} windows were released"
    prose(console, f"[bold]{released}[/bold]: {why}")


def _explained(summary: Summary) -> list[str]:
    """Say what the numbers mean, what they cost and whether they can be trusted."""
    bounds = summary.event_bias_bounds
    lacking = [f"{bounds[name]:.0f}" for name in EVENT_ROWS if name in bounds]
    lines = [
        "± is half of the 95 % interval; < : not told from zero, the interval's end",
        (
            f"Simulated, so the truth is known: {summary.interval_coverage_percent:.1f} % of "
            f"{summary.cells_checked:,} intervals of 95 % hold it"
        ),
    ]
    if any(map(round, bounds.values())):
        lines.append(f"A host names few: these counts may lack up to {listed(lacking)} hosts more")
    lines += [
        (
            f"Each host spent epsilon {summary.epsilon_spent:.2f} of {summary.epsilon:g} at delta "
            f"{summary.delta:g}; a real plan spreads it over a week, with far more noise. Here "
            "noise hides nobody: the simulated data are known"
        ),
        _reports(summary),
    ]
    return lines


def _reports(summary: Summary) -> str:
    parties = "agree" if summary.transcripts_agree else "[bold red]DO NOT AGREE[/bold red]"
    agree, sent = f"The two parties' transcripts {parties}", summary.live_reports_sent
    held = summary.live_reports_in_leader_transcript, summary.live_reports_in_helper_transcript
    if not sent:
        return agree
    if held == (sent, sent):
        return f"{agree} and hold all {counted(sent, 'report')} of this host"
    return f"{agree}; of this host's {counted(sent, 'report')} they hold {held[0]} and {held[1]}"
