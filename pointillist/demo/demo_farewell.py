"""What a demo prints for a person at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .demo_screen import REST, SHOWN, families, ranked, readable, share
from .demo_tally import NORMAL, PLUS_MINUS, Z95, CellView, Struck
from .summary import Summary

WEEKLY_HOSTS: Final = 12_500
"""The cohort of the shipped plan, for the line that says what a real fleet would see."""

_AN_HOUR, _A_DAY = 1.5, 0.3
"""Percentage points: 1.96 of the plan's standard errors, 0.788 and 0.161 (docs/privacy.md)."""

Writer = Callable[[float], str]
"""Writes a share as the table's unit."""


def tell(
    console: Console,
    summary: Summary,
    mean: list[CellView],
    events: dict[str, Struck],
) -> None:
    """Print the summary: the same rows, numbers and intervals as the chart."""
    console.print()
    console.rule("[bold]What was learned about the fleet, and about no host")
    _prose(console, f"{PLUS_MINUS}. The truth is known because this is a demo.\n")
    title = f"GPU time by kernel family, mean of {summary.windows_released} windows"
    rest = [view for view in ranked(mean) if view.cell in REST]
    _tell_cells(console, title, [*rest, *families(mean)], mean, lambda value: share(value) + " %")
    for name, one in events.items():
        section = name.replace("_", " ").capitalize()
        if not one.hosts:
            _prose(console, f"{section}: the window was not released\n")
            continue
        title = f"{section}, of {one.hosts:,} hosts"
        shown, hosts = ranked(one.views)[:SHOWN], one.hosts
        _tell_cells(console, title, shown, one.views, _in_hosts(hosts))
    _tell_privacy(console, summary)
    _tell_checks(console, summary)
    _tell_files(console, summary)


def _in_hosts(hosts: int) -> Writer:
    return lambda value: f"{value * hosts:,.0f}"


def _prose(console: Console, text: str) -> None:
    """Print text that a terminal wraps at words, and a file not at all."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _tell_cells(
    console: Console, title: str, shown: list[CellView], views: list[CellView], write: Writer
) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, style="bold", min_width=34)
    for heading in ("released", "±", "truth"):
        table.add_column(heading, justify="right")
    for view in shown:
        truth = "" if view.truth is None else write(view.truth)
        error = write(Z95 * view.standard_error)
        name = Text(readable(view.cell), style="not bold")
        released = Text("below noise", "dim") if view.below_noise else write(view.released)
        table.add_row(name, released, error, Text(truth, "green"))
    console.print(table)
    noise = sum(1 for view in views if view.below_noise)
    hidden = len(views) - noise - sum(1 for view in shown if not view.below_noise)
    more = f"{hidden} more above noise; " if hidden else ""
    console.print(
        f"{more}{noise} of {len(views)} cells below noise; of empty ones "
        f"{len(views) * NORMAL.cdf(-2):.1f} pass two standard errors by chance\n",
        style="dim",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def _tell_privacy(console: Console, summary: Summary) -> None:
    _prose(
        console,
        f"[bold]Privacy[/bold]\nThe whole run costs each host epsilon {summary.epsilon_spent:.2f} "
        f"of {summary.epsilon:g} at delta {summary.delta:g}. It is what a fleet of independent "
        "hosts would get. It is not what this host gets: the simulated hosts' data are known "
        "here, so their noise hides nobody. On the shipped weekly plan a fleet of this size "
        f"would see little but noise; {WEEKLY_HOSTS:,} hosts see the kernel mix ± {_AN_HOUR} "
        f"points an hour and ± {_A_DAY} a day (pointillist plan --hosts {WEEKLY_HOSTS}).\n",
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
            f"± {Z95 * summary.standard_error_percent_window:.2f} points a window; window "
            f"end to release: median {summary.window_end_to_release_p50_s:.1f} s, "
            f"p90 {summary.window_end_to_release_p90_s:.1f} s"
        ),
        "the two parties' transcripts "
        + ("agree" if summary.transcripts_agree else "[bold red]DO NOT AGREE[/bold red]"),
    ]
    if summary.windows_released < summary.windows:
        lines.insert(
            0,
            f"[bold]{summary.windows_released} of {summary.windows} windows were released[/bold]: "
            "reports of the others came too late for this machine's pace; fewer hosts need less",
        )
    if summary.live_reports_sent:
        lines.append(
            f"this host sent {summary.live_reports_sent} reports: "
            f"{summary.live_reports_in_leader_transcript} are in the Leader's transcript, "
            f"{summary.live_reports_in_helper_transcript} in the Helper's",
        )
    if summary.rejections:
        refused = ", ".join(f"{name} {count}" for name, count in sorted(summary.rejections.items()))
        lines.append(f"refused, as the demo's network copies, forges and delays: {refused}")
    console.print("[bold]Checks[/bold]")
    for line in lines:
        _prose(console, f"- {line}")


def _tell_files(console: Console, summary: Summary) -> None:
    if not summary.files:
        return
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
