"""What a demo comes to: coverage, the live host's reports, the files that say so, and its end."""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregator.protocol.directory import PinnedParties
from aggregator.statistics.ratios import BELOW_NOISE_ERRORS
from aggregator.transcripts.transcript import export_transcript, read_transcript
from aggregator.transcripts.transcript_check import Transcript, verify_transcripts
from edge_agent.ledger.left_reports import Fate, read_left
from edge_agent.local.words import counted
from pages.wording import listed
from simulator.cell_view import CellView, ranked
from simulator.outcome.coverage import TOTAL, coverage_rows

from .demo_fleet import DemoFleet
from .demo_run import HELPER_TRANSCRIPT, LEADER_TRANSCRIPT, epsilon_spent, latencies_s, rejections
from .demo_tally import DemoTally
from .stage import REST, CellTable, Struck, Summary, cell_table, families, in_hosts, near, share

FAMILIES: Final = 5
EVENT_ROWS: Final = {"incidents": 3, "hardware_faults": 2, "applications_seen": 2}
"""Rows of each table: with 80 columns the end stays below 30 lines."""
WEEKLY_HOSTS: Final = 12_500
"""The cohort of the shipped plan, for the command that says what a real fleet would see."""
_COMMAND: Final = ".venv/bin/pointillist"


def summarise(fleet: DemoFleet, tally: DemoTally) -> dict[str, Any]:
    """Sum up what was seen and what both parties wrote down, as --json has it; writes nothing.

    coverage      by section and series, intervals that hold the truth, the worst first
    event_hosts   by section, the hosts accepted in its window: what its shares are of
    rows_told_from_zero     of the mean mix and the event sections; of these rows_told_truly_empty
                            are of things that no simulated host did
    event_bias_bounds   by section, hosts that its cells may lack, see `Cell`
    files         what it is -> path; empty until they are written
    try_next      what for -> a command that works on the files

    Shares are of GPU wall time or of hosts.
    Raises      StateUnusable when a party's state cannot be read
    """
    plan, task, mean, events = fleet.plan, fleet.tasks[0], tally.mean.mean(), tally.events
    tables = [mean, *(event.views for event in events.values())]
    told = [view for views in tables for view in views if view.told]
    coverage = tally.coverage()
    total = next((row.values for row in coverage if row.section == TOTAL), None)
    covered, checked = (total.hits, total.trials) if total else (0, 0)
    low, high = _binomial_bounds(checked)
    waits = sorted(latencies_s(fleet)) or [float("nan")]
    errors = [view.standard_error for views in tally.mix for view in views] or [float("nan")]
    sent, in_leader, in_helper, agree = _compare_transcripts(fleet)
    return {
        "hosts": plan.roster,
        "gpus": plan.gpus,
        "windows": plan.windows,
        "windows_released": len(tally.mix),
        "epsilon": task.epsilon_millionths / 1e6,
        "delta": task.delta_1e12 / 1e12,
        "epsilon_spent": round(epsilon_spent(fleet, tally), 4),
        "standard_error_percent_window": round(100 * statistics.median(errors), 3),
        "rows_told_from_zero": len(told),
        "rows_told_truly_empty": sum(not view.truth for view in told),
        "cells_checked": checked,
        "interval_coverage_percent": round(100 * covered / max(checked, 1), 2),
        "interval_coverage_binomial_low_percent": round(100 * low / max(checked, 1), 2),
        "interval_coverage_binomial_high_percent": round(100 * high / max(checked, 1), 2),
        "window_end_to_release_p50_s": round(statistics.median(waits), 2),
        "window_end_to_release_p90_s": round(waits[min(int(0.9 * len(waits)), len(waits) - 1)], 2),
        "rejections": rejections(fleet),
        "live_reports_sent": sent,
        "live_reports_in_leader_transcript": in_leader,
        "live_reports_in_helper_transcript": in_helper,
        "transcripts_agree": agree,
        "leader_pk": fleet.leader_pk.hex(),
        "helper_pk": fleet.helper_pk.hex(),
        "log": "kafka" if plan.kafka else "embedded",
        "mix": [_cell(view) for view in ranked(mean)],
        "events": {
            name: [_cell(view) for view in ranked(event.views)] for name, event in events.items()
        },
        "event_hosts": {name: event.hosts for name, event in events.items()},
        "files": {},
        "try_next": {},
        "event_bias_bounds": tally.bias_bounds,
        "coverage": coverage_rows(coverage),
    }


def demo_end(
    summary: Mapping[str, Any],
    mean: Sequence[CellView],
    events: Mapping[str, Struck],
    *,
    early: bool = False,
) -> Summary:
    """What a person is told: the first rows of the chart, with the same numbers and intervals.

    early   a person ended the run
    """
    released, files, tables = summary["windows_released"], summary["files"], list[CellTable | str]()
    if released < summary["windows"]:
        why = "you ended it" if early else "reports of the others came too late for this machine"
        tables.append(
            f"[bold]{released} of {summary['windows']} windows were released[/bold]: {why}"
        )
    title = f"GPU time by kernel family, mean of {counted(released, 'window')}"
    shown = [view for view in ranked(mean) if view.cell in REST] + families(mean)[:FAMILIES]
    tables.append(cell_table(title, shown, lambda value: share(value) + " %"))
    for name, event in events.items():
        section = name.replace("_", " ").capitalize()
        if event.hosts:
            title, shown = f"{section}, of {event.hosts:,} hosts", ranked(event.views)
            tables.append(cell_table(title, shown[: EVENT_ROWS[name]], in_hosts(event.hosts)))
        else:
            tables.append(f"{section}: the window was not released")
    checks = _checks(summary)
    if files:
        kept = near(Path(files["summary"]).parent)
        checks.append(f"Chart, releases and summary.json with the rest: {kept}")
        checks.append(f"Later: {pages_command(near(files['releases']))}")
    return Summary("What was learned about the fleet, and about no host", tables, checks)


def _checks(summary: Mapping[str, Any]) -> list[str]:
    bounds = summary["event_bias_bounds"]
    lines = [
        "± is half of the 95 % interval; < : not significant, the interval's end",
        (
            f"Simulated, so the truth is known: {summary['interval_coverage_percent']:.1f} % of "
            f"{summary['cells_checked']:,} intervals of 95 % hold it"
        ),
    ]
    if any(map(round, bounds.values())):
        lacking = listed([f"{bounds[name]:.0f}" for name in EVENT_ROWS if name in bounds])
        lines.append(f"A host names few: these counts may lack up to {lacking} hosts more")
    spent = f"{summary['epsilon_spent']:.2f} of {summary['epsilon']:g}"
    lines.append(
        f"Each host spent epsilon {spent} at delta {summary['delta']:g}; a real plan spreads "
        "it over a week, with far more noise. Here noise hides nobody: the simulated data are known"
    )
    parties = "agree" if summary["transcripts_agree"] else "[bold red]DO NOT AGREE[/bold red]"
    agree, sent = f"The two parties' transcripts {parties}", summary["live_reports_sent"]
    held = [summary[f"live_reports_in_{party}_transcript"] for party in ("leader", "helper")]
    if not sent:
        return [*lines, agree]
    if held == [sent, sent]:
        return [*lines, f"{agree} and hold all {counted(sent, 'report')} of this host"]
    its = f"of this host's {counted(sent, 'report')} they hold {held[0]} and {held[1]}"
    return [*lines, f"{agree}; {its}"]


def write_results(
    fleet: DemoFleet, tally: DemoTally, summary: Mapping[str, Any], output: Path
) -> dict[str, Any]:
    """Write all files; give the summary with their names. Raises OSError."""
    names = {
        "chart": "demo.png",
        "releases": "releases",
        "summary": "summary.json",
        "leader_transcript": LEADER_TRANSCRIPT,
        "helper_transcript": HELPER_TRANSCRIPT,
    }
    files = {what: output / name for what, name in names.items()}
    whole = {**summary, "files": {what: str(path) for what, path in files.items()}}
    whole["try_next"] = next_commands(whole)
    shutil.copytree(fleet.folders.releases, files["releases"])
    leader, helper = _transcripts(fleet)
    export_transcript(leader, files["leader_transcript"])
    export_transcript(helper, files["helper_transcript"])
    files["summary"].write_text(json.dumps(whole, indent=2) + "\n")
    _draw(fleet, tally, files["chart"])
    return whole


def pages_command(releases: str) -> str:
    """Give the command that serves the pages of a run after it, from its folder of releases."""
    return f"{_COMMAND} web --store {shlex.quote(releases)}"


def next_commands(summary: Mapping[str, Any]) -> dict[str, str]:
    files = {name: shlex.quote(path) for name, path in summary["files"].items()}
    store = f"--store {files['releases']}"
    sql = (
        "SELECT name, share, share_low, share_high FROM hours "
        "WHERE section = 'kernel_mix' AND told ORDER BY share DESC"
    )
    both = f"{files['leader_transcript']} {files['helper_transcript']}"
    signed = f"--leader {summary['leader_pk']} --helper {summary['helper_pk']}"
    commands = {
        "GPU time by SQL": f'query "{sql}" {store}',
        "how many hosts had which trouble": f"causes {store}",
        "whether both parties signed the same releases": (
            f"leader transcript verify {both} {signed}"
        ),
        "what a real fleet would see": f"plan --hosts {WEEKLY_HOSTS}",
        "a Leader, a Helper and this host, each with its own keys: docs/first-fleet.md": (
            "fleet init /srv/trial"
        ),
    }
    return {
        "the fleet's pages again": pages_command(summary["files"]["releases"]),
        **{what: f"{_COMMAND} {words}" for what, words in commands.items()},
    }


def _binomial_bounds(checked: int) -> tuple[float, float]:
    """Give the 95 % range of how many of `checked` intervals hold the truth by chance."""
    from scipy.special import bdtr  # not scipy.stats, which takes a second to load

    chances = bdtr(np.arange(max(checked, 1) + 1.0), max(checked, 1), 0.95)
    low, high = np.searchsorted(chances, (0.025, 0.975))
    return float(low), float(high)


def _draw(fleet: DemoFleet, tally: DemoTally, path: Path) -> None:
    from .chart import draw  # matplotlib loads slowly: not while a fleet starts

    plan, by_window, events = fleet.plan, tally.mix, tally.events
    title = (
        f"Pointillist demo: {plan.roster:,} hosts, {plan.gpus:,} GPUs, "
        f"{len(by_window)} windows, epsilon {fleet.tasks[0].epsilon_millionths / 1e6:g}"
    )
    shown = {name: events[name] for name in ("incidents", "hardware_faults") if events[name].hosts}
    draw(path, title, tally.mean.mean(), by_window, shown)


def _transcripts(fleet: DemoFleet) -> tuple[Transcript, Transcript]:
    leader, helper = fleet.folders.leader / "state", fleet.folders.helper / "state"
    return read_transcript(leader / "leader.sqlite"), read_transcript(helper / "helper.sqlite")


def _compare_transcripts(fleet: DemoFleet) -> tuple[int, int, int, bool]:
    """Look for this host's reports in both transcripts, and whether these agree."""
    leader, helper = _transcripts(fleet)
    verdict = verify_transcripts(leader, helper, PinnedParties(fleet.leader_pk, fleet.helper_pk))
    ledger = fleet.folders.agents / "live" / "state" / "ledger.sqlite"
    left = read_left(ledger).reports if ledger.exists() else ()
    ids = [report.report_id for report in left if report.fate is Fate.SENT]
    found = [sum(1 for identity in ids if party.contains(identity)) for party in (leader, helper)]
    return len(ids), found[0], found[1], verdict.sound


def _cell(view: CellView) -> dict[str, Any]:
    return {
        "cell": view.cell,
        "released_share": round(view.share, 6) if view.told else None,
        "low": round(view.share - view.half, 6),
        "high": round(view.share + view.half, 6),
        "standard_error": round(view.standard_error, 6),
        "truth": round(view.truth, 6),
        "below_noise": view.share < BELOW_NOISE_ERRORS * view.standard_error,
        "q_value": float(f"{view.q_value:.3g}"),
    }
