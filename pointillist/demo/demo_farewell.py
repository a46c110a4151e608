"""What a demo prints for a person at its end."""

from __future__ import annotations

import shlex
from typing import Final

from rich.console import Console

from edge_agent.local.quantity import counted
from pointillist.run_terminal import (
    LESS,
    PLUS_MINUS,
    RATE,
    REST,
    SHOWN,
    Z95,
    NextCommand,
    Struck,
    families,
    in_hosts,
    near,
    prose,
    share,
    tell_cells,
    tell_files,
)
from simulator.cell_view import CellView, listed, ranked
from simulator.outcome import percents

from .summary import Summary

WEEKLY_HOSTS: Final = 12_500
"""The cohort of the shipped plan, for the line that says what a real fleet would see."""

_AN_HOUR, _A_DAY = 2.0, 0.4
"""Percentage points: 1.96 of the plan's standard errors, 1.037 and 0.212 (docs/privacy.md)."""


def tell(
    console: Console,
    summary: Summary,
    mean: list[CellView],
    events: dict[str, Struck],
) -> None:
    """Print the summary: the same rows, numbers and intervals as the chart."""
    console.print()
    console.rule("[bold]What was learned about the fleet, and about no host")
    prose(console, f"{PLUS_MINUS}.\n{LESS}.\nThe truth is known because this is a demo.\n")
    title = f"GPU time by kernel family, mean of {counted(summary.windows_released, 'window')}"
    rest = [view for view in ranked(mean) if view.cell in REST]
    tell_cells(console, title, [*rest, *families(mean)], mean, lambda value: share(value) + " %")
    for name, event in events.items():
        section = name.replace("_", " ").capitalize()
        if not event.hosts:
            prose(console, f"{section}: the window was not released\n")
            continue
        title = f"{section}, of {event.hosts:,} hosts"
        shown, hosts = ranked(event.views)[:SHOWN], event.hosts
        tell_cells(console, title, shown, event.views, in_hosts(hosts))
        _tell_bias(console, summary.event_bias_bounds.get(name, 0.0))
    _tell_privacy(console, summary)
    _tell_checks(console, summary)
    if summary.files:
        tell_files(console, summary.files, next_commands(summary), width=18)


def _tell_bias(console: Console, bias_bound: float) -> None:
    prose(
        console,
        "A host may report so many and no more; one that has more leaves some out. So each "
        "number may be low on average, beyond ±: by "
        f"{counted(round(bias_bound), 'host')} at most (95 %).\n",
    )


def _tell_privacy(console: Console, summary: Summary) -> None:
    prose(
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
        f"by section, worst first: {percents(summary.coverage)}",
        (
            f"{summary.rows_told_from_zero} rows told from zero, {summary.rows_told_truly_empty} "
            f"of them of what no simulated host did; at most {RATE} of each table expected"
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
        refused = listed(summary.rejections)
        lines.append(f"refused, as the demo's network copies, forges and delays: {refused}")
    console.print("[bold]Checks[/bold]")
    for line in lines:
        prose(console, f"- {line}")


def next_commands(summary: Summary) -> list[NextCommand]:
    """Commands that work on what the run has left."""
    files = {name: shlex.quote(near(path)) for name, path in summary.files.items()}
    sql = (
        "SELECT name, share, share_low, share_high FROM hours "
        "WHERE section = 'kernel_mix' AND told ORDER BY share DESC"
    )
    command = ".venv/bin/pointillist"
    both = f"{files['leader_transcript']} {files['helper_transcript']}"
    signed = f"--leader {summary.leader_pk} --helper {summary.helper_pk}"
    return [
        (
            "the fleet's pages again; those of the demo ended with it",
            f"{command} web --store {files['releases']}",
        ),
        ("GPU time by SQL", f'{command} query "{sql}" --store {files["releases"]}'),
        ("how many hosts had which trouble", f"{command} causes --store {files['releases']}"),
        (
            "whether both parties signed the same releases",
            f"{command} leader transcript verify {both} {signed}",
        ),
        ("what a real fleet would see", f"{command} plan --hosts {WEEKLY_HOSTS}"),
        (
            "a Leader, a Helper and this host, each with its own keys: docs/first-fleet.md",
            f"{command} fleet init /srv/trial",
        ),
    ]
