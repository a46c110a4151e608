"""What a demo prints for a person at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .screen import ranked, readable, share
from .summary import Summary
from .tally import NORMAL, Z95, CellView

WEEKLY_HOSTS: Final = 12_500
"""The cohort of the shipped plan, for the line that says what a real fleet would see."""

ROWS: Final = 10

Writer = Callable[[float], str]
"""Writes a share as the table's unit."""


def tell(
    console: Console,
    summary: Summary,
    mean: list[CellView],
    events: dict[str, list[CellView]],
    hosts: int,
) -> None:
    """Print the summary; hosts is the number accepted in the last window."""
    console.print()
    console.rule("[bold]What was learned about the fleet, and about no host")
    console.print("± is half of the 95 % interval. The truth is known because this is a demo.\n")
    title = f"GPU time by kernel family, mean of {summary.windows_released} windows"
    _tell_cells(console, title, mean, lambda value: share(value) + " %")
    for name, views in events.items():
        title = name.replace("_", " ").capitalize() + ", hosts"
        _tell_cells(console, title, views, lambda value: f"{value * hosts:,.0f}")
    _tell_privacy(console, summary)
    _tell_checks(console, summary)
    _tell_files(console, summary)


def _tell_cells(console: Console, title: str, views: list[CellView], write: Writer) -> None:
    shown = [view for view in ranked(views) if not view.below_noise]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, style="bold", min_width=34)
    for heading in ("released", "±", "truth"):
        table.add_column(heading, justify="right")
    for view in shown[:ROWS]:
        truth = "" if view.truth is None else write(view.truth)
        error = write(Z95 * view.standard_error)
        name = Text(readable(view.cell), style="not bold")
        table.add_row(name, write(view.released), error, Text(truth, "green"))
    console.print(table)
    noise = sum(1 for view in views if view.below_noise)
    more = f"{len(shown) - ROWS} more above noise; " if len(shown) > ROWS else ""
    console.print(
        f"{more}{noise} of {len(views)} cells below noise; of empty ones "
        f"{len(views) * NORMAL.cdf(-2):.1f} pass two standard errors by chance\n",
        style="dim",
        highlight=False,
    )


def _tell_privacy(console: Console, summary: Summary) -> None:
    console.print(
        f"[bold]Privacy[/bold]\nThe whole run costs each host epsilon {summary.epsilon_spent:.2f} "
        f"of {summary.epsilon:g} at delta {summary.delta:g}. It is what a fleet of independent "
        "hosts would get. It is not what this host gets: the simulated hosts' data are known "
        "here, so their noise hides nobody. On the shipped weekly plan a fleet of this size "
        f"would see little but noise; {WEEKLY_HOSTS:,} hosts see the kernel mix within 0.79 "
        "points an hour and 0.16 a day (pointillist plan --hosts 12500).\n",
        highlight=False,
    )


def _tell_checks(console: Console, summary: Summary) -> None:
    low = summary.interval_coverage_binomial_low_percent
    high = summary.interval_coverage_binomial_high_percent
    lines = [
        (
            f"{summary.interval_coverage_percent:.1f} % of {summary.cells_checked:,} intervals "
            f"hold the truth; 95 % expected, {low:.1f} to {high:.1f} % by chance"
        ),
        (
            f"{summary.families_above_noise} kernel families stand above two standard errors in "
            f"the mean; {summary.families_above_noise_expected:g} expected from the true mix"
        ),
        (
            f"standard error {summary.standard_error_percent_window:.2f} points a window; window "
            f"end to release: median {summary.window_end_to_release_p50_s:.1f} s, "
            f"p90 {summary.window_end_to_release_p90_s:.1f} s"
        ),
        "the two parties' transcripts "
        + ("agree" if summary.transcripts_agree else "[bold red]DO NOT AGREE[/bold red]"),
    ]
    if summary.live_reports_sent:
        lines.insert(
            3,
            f"this host sent {summary.live_reports_sent} reports: "
            f"{summary.live_reports_in_leader_transcript} are in the Leader's transcript, "
            f"{summary.live_reports_in_helper_transcript} in the Helper's",
        )
    if summary.rejections:
        refused = ", ".join(f"{name} {count}" for name, count in sorted(summary.rejections.items()))
        lines.append(f"refused, as the demo's network copies, forges and delays: {refused}")
    console.print("[bold]Checks[/bold]")
    for line in lines:
        console.print(f"- {line}", highlight=False)


def _tell_files(console: Console, summary: Summary) -> None:
    console.print("\n[bold]Files[/bold]")
    for name, path in summary.files.items():
        console.print(f"{name:18} {path}", highlight=False, soft_wrap=True)
    console.print("\n[bold]Try next[/bold]")
    for line in next_commands(summary):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def next_commands(summary: Summary) -> list[str]:
    """Commands that work on what the run has left."""
    files = summary.files
    sql = (
        "SELECT cell, round(avg(value), 1) AS gpu_seconds FROM releases "
        "WHERE section = 'kernel_mix' GROUP BY cell ORDER BY 2 DESC LIMIT 8"
    )
    return [
        f'.venv/bin/pointillist query "{sql}" --folder {files["releases"]}',
        f".venv/bin/pointillist causes --folder {files['releases']}",
        (
            f".venv/bin/pointillist leader transcript verify {files['leader_transcript']} "
            f"{files['helper_transcript']} --leader {summary.leader_pk} "
            f"--helper {summary.helper_pk}"
        ),
        ".venv/bin/pointillist plan --hosts 12500",
    ]
