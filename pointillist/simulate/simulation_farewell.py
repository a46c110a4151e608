"""What a simulation prints for a person at its end: figures, files, and what to try next."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from edge_agent.local.quantity import counted
from pointillist.run_terminal import (
    LESS,
    PLUS_MINUS,
    NextCommand,
    name_column,
    near,
    print_table,
    prose,
    readable,
    share,
    tell_cells,
    tell_files,
)
from pointillist.table import Column
from simulator.cell_view import CellView, ranked
from simulator.outcome import percents
from simulator.scenario import FOLDER, load, names

from .play import RELEASES, Result

ROWS = 10


def tell(console: Console, result: Result, folder: Path) -> None:
    """Print the summary."""
    summary = result.summary
    console.print()
    console.rule(f"[bold]{summary['scenario']}: what the fleet would have learned")
    _tell_mix(console, summary, result.mean)
    for section, rows in summary["causes"].items():
        _tell_causes(console, section, rows)
    _tell_adversaries(console, summary["adversaries"])
    for line in checks(summary):
        console.print(f"- {line}", highlight=False)
    tell_files(console, result.files, next_commands(summary, folder), width=12)


def _tell_mix(console: Console, summary: dict[str, Any], mean: list[CellView]) -> None:
    if not mean:
        console.print("\n[bold red]Nothing was released.[/bold red]", end=" ")
        console.print(f"Windows: {summary['kept_back']}\n", highlight=False)
        return
    section = summary["section"].replace("_", " ")
    title = f"{section}, mean of {counted(summary['windows_released'], 'window')}"
    shown = ranked(mean)[:ROWS]
    prose(console, f"{PLUS_MINUS}.\n{LESS}.\n")
    tell_cells(console, title, shown, mean, lambda value: f"{share(value)} %")


def _tell_causes(console: Console, section: str, rows: list[dict[str, Any]]) -> None:
    columns = (
        name_column(f"{section.replace('_', ' ')}, hosts", lambda row: readable(row["cause"])),
        Column("released", itemgetter("shown"), right=True),
        Column("truth", lambda row: f"{row['true_hosts']:,}", right=True, style=lambda _: "green"),
    )
    print_table(console, columns, rows[:ROWS])
    more = len(rows) - ROWS
    console.print(f"and {more} more: --json has them\n" if more > 0 else "", highlight=False)


def _tell_adversaries(console: Console, found: dict[str, Any]) -> None:
    if not found:
        return
    rows = []
    for lie in found["lies"]:
        moved = f"moved {lie['moved_of_bound']:.2f} of its bound; refused: {lie['refused']}"
        rows.append((f"{lie['liars']} lying: {readable(lie['lie'])}", moved))
    for trick in found["tricks"]:
        told = f"{trick['answer']}; {trick['sums']} sum of the window"
        rows.append((f"Leader: {readable(trick['trick'])}", told))
    for fault in found["faults"]:
        sums = "true sums" if fault["true_sums"] else "FALSE SUMS"
        told = f"{fault['released_percent']:.0f} % of the reports released, {sums}"
        rows.append((f"{readable(fault['fault'])}, {fault['size']:g}", told))
    columns = (
        name_column(f"adversaries, in a cohort of {found['cohort']}", itemgetter(0)),
        Column("what came of it", itemgetter(1), folds=True),
    )
    print_table(console, columns, rows)
    console.print()


def checks(summary: dict[str, Any]) -> list[str]:
    """Say what a reader should know before trusting a figure."""
    lines = [
        (
            f"{summary['windows_released']:,} of {counted(summary['windows'], 'window')} released, "
            f"{summary['reports_released']:,} reports in them; epsilon {summary['epsilon']:g} at "
            f"delta {summary['delta']:g} a host and week"
        )
    ]
    if summary.get("intervals"):
        held = 100 * summary["intervals_held"] / summary["intervals"]
        lines.append(
            f"{held:.1f} % of {summary['intervals']:,} intervals hold the truth; 95 % are meant to"
        )
        lines.append(f"by section, worst first: {percents(summary['coverage'])}")
    if summary["bias_bounds"]:
        told = ", ".join(f"{readable(k)} {v:,.0f}" for k, v in summary["bias_bounds"].items())
        lines.append(
            "beyond their intervals, numbers of hosts may be low on average, as a host that has "
            f"more than it may report left some out: by at most (95 %) {told}"
        )
    if summary.get("standard_error_points") is not None:
        lines.append(
            f"standard error {summary['standard_error_points']:.2f} points a window, "
            f"{summary['standard_error_points_mean']:.2f} of the mean"
        )
    if summary["refused"]:
        lines.append(f"reports refused or withheld: {summary['refused']}")
    if summary["kept_back"]:
        lines.append(f"windows of which nothing was released: {summary['kept_back']}")
    recorded = summary["recorded_share_of_busy_gpus"]
    if recorded is not None:
        lines.append(
            f"{100 * recorded:.0f} % of the busy GPUs run an application as it was recorded; the "
            "rest are variants by rule (docs/simulator-model.md)"
        )
    return lines


def next_commands(summary: dict[str, Any], folder: Path) -> list[NextCommand]:
    """Give commands that work on what the run has left, and one that goes further."""
    other = next(name for name in names() if name != summary["scenario"])
    sql = (
        f"import pandas; t = pandas.read_parquet('{near(folder / 'cells.parquet')}'); "
        "print(t[t.section == 'kernel_mix'].groupby('cell')[['truth', 'released']].sum())"
    )
    causes = f"pointillist causes --store {near(folder / RELEASES)}"
    return [
        ("truth and release side by side", f'.venv/bin/python -c "{sql}"'),
        *([("how many hosts had which trouble", causes)] if summary["causes"] else []),
        ("another scenario", f"pointillist simulate {other} --hours 0.2"),
        ("many of them, with a report", "pointillist experiment docs/experiments/report.toml"),
    ]


def list_scenarios() -> list[dict[str, Any]]:
    """Give each shipped scenario with its one line."""
    found = []
    for name in names():
        scenario = load(name)
        found.append(
            {
                "name": name,
                "hosts": scenario.hosts,
                "gpus": scenario.gpus,
                "hours": scenario.hours,
                "plan": scenario.plan,
                "about": scenario.about,
                "file": str(FOLDER / f"{name}.toml"),
            }
        )
    return found
