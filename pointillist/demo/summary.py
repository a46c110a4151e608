"""What a demo run comes to: coverage, the live host's reports, and the files that say so."""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregator.protocol.directory import PinnedParties
from aggregator.statistics.ratios import BELOW_NOISE_ERRORS
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import Transcript, verify_transcripts
from aggregator.transcripts.transcript_export import export_transcript
from pointillist.run_terminal import Struck
from simulator.cell_view import CellView, ranked
from simulator.outcome import TOTAL, SectionCoverage, coverage_rows

from .demo_fleet import DemoFleet
from .demo_pages import HELPER_TRANSCRIPT, LEADER_TRANSCRIPT
from .demo_plan import EVENTS
from .demo_run import epsilon_spent, latencies_s, live_reports, rejections
from .demo_tally import DemoTally

WEEKLY_HOSTS: Final = 12_500
"""The cohort of the shipped plan, for the command that says what a real fleet would see."""

_COMMAND: Final = ".venv/bin/pointillist"


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a script may want to know of a run; shares are of GPU wall time or of hosts.

    coverage      by section and series, intervals that hold the truth, the worst first
    event_hosts   by section, the hosts accepted in its window: what its shares are of
    rows_told_from_zero     of the mean mix and the event sections; of these rows_told_truly_empty
                            are of things that no simulated host did
    event_bias_bounds   by section, hosts that its cells may lack, see `Cell`
    files         what it is -> path; empty until they are written
    try_next      what for -> a command that works on the files
    """

    hosts: int
    gpus: int
    windows: int
    windows_released: int
    epsilon: float
    delta: float
    epsilon_spent: float
    standard_error_percent_window: float
    rows_told_from_zero: int
    rows_told_truly_empty: int
    cells_checked: int
    interval_coverage_percent: float
    interval_coverage_binomial_low_percent: float
    interval_coverage_binomial_high_percent: float
    window_end_to_release_p50_s: float
    window_end_to_release_p90_s: float
    rejections: dict[str, int]
    live_reports_sent: int
    live_reports_in_leader_transcript: int
    live_reports_in_helper_transcript: int
    transcripts_agree: bool
    leader_pk: str
    helper_pk: str
    log: str
    mix: list[dict[str, Any]]
    events: dict[str, list[dict[str, Any]]]
    event_hosts: dict[str, int]
    files: dict[str, str] = field(default_factory=dict)
    try_next: dict[str, str] = field(default_factory=dict)
    event_bias_bounds: dict[str, float] = field(default_factory=dict)
    coverage: list[dict[str, Any]] = field(default_factory=list)


def summarise(fleet: DemoFleet, tally: DemoTally) -> Summary:
    """Sum up what was seen and what both parties wrote down; writes nothing.

    Raises      StateUnusable when a party's state cannot be read
    """
    mean = tally.mean.mean()
    by_window = tally.mix
    events = events_of(tally)
    tables = [mean, *(event.views for event in events.values())]
    told = [view for views in tables for view in views if view.told]
    coverage = tally.coverage()
    covered, checked = _counted(coverage)
    low, high = _binomial_bounds(checked)
    waits = sorted(latencies_s(fleet)) or [float("nan")]
    sent, in_leader, in_helper, agree = _compare_transcripts(fleet)
    task = fleet.tasks[0]
    return Summary(
        hosts=fleet.options.plan.roster,
        gpus=fleet.options.plan.gpus,
        windows=fleet.options.plan.windows,
        windows_released=len(by_window),
        epsilon=task.epsilon_millionths / 1e6,
        delta=task.delta_1e12 / 1e12,
        epsilon_spent=round(epsilon_spent(fleet, tally), 4),
        standard_error_percent_window=_error_percent(by_window),
        rows_told_from_zero=len(told),
        rows_told_truly_empty=sum(not view.truth for view in told),
        cells_checked=checked,
        interval_coverage_percent=round(100 * covered / max(checked, 1), 2),
        interval_coverage_binomial_low_percent=round(100 * low / max(checked, 1), 2),
        interval_coverage_binomial_high_percent=round(100 * high / max(checked, 1), 2),
        window_end_to_release_p50_s=round(statistics.median(waits), 2),
        window_end_to_release_p90_s=round(waits[min(int(0.9 * len(waits)), len(waits) - 1)], 2),
        rejections=rejections(fleet),
        live_reports_sent=sent,
        live_reports_in_leader_transcript=in_leader,
        live_reports_in_helper_transcript=in_helper,
        transcripts_agree=agree,
        leader_pk=fleet.leader_pk.hex(),
        helper_pk=fleet.helper_pk.hex(),
        log="kafka" if fleet.options.kafka else "embedded",
        mix=[_cell(view) for view in ranked(mean)],
        events={
            name: [_cell(view) for view in ranked(event.views)] for name, event in events.items()
        },
        event_hosts={name: event.hosts for name, event in events.items()},
        event_bias_bounds=tally.bias_bounds,
        coverage=coverage_rows(coverage),
    )


def write_results(fleet: DemoFleet, tally: DemoTally, summary: Summary, output: Path) -> Summary:
    """Write chart, released Parquet, transcripts and summary.json; give it with their names.

    Raises      OSError
    """
    names = {
        "chart": "demo.png",
        "releases": "releases",
        "summary": "summary.json",
        "leader_transcript": LEADER_TRANSCRIPT,
        "helper_transcript": HELPER_TRANSCRIPT,
    }
    files = {what: output / name for what, name in names.items()}
    summary = replace(summary, files={what: str(path) for what, path in files.items()})
    summary = replace(summary, try_next=next_commands(summary))
    shutil.copytree(fleet.folders.releases, files["releases"])
    leader, helper = _transcripts(fleet)
    export_transcript(leader, files["leader_transcript"])
    export_transcript(helper, files["helper_transcript"])
    files["summary"].write_text(json.dumps(asdict(summary), indent=2) + "\n")
    _draw(fleet, tally, files["chart"])
    return summary


def pages_command(releases: str) -> str:
    """Give the command that serves the pages of a run after it, from its folder of releases."""
    return f"{_COMMAND} web --store {shlex.quote(releases)}"


def next_commands(summary: Summary) -> dict[str, str]:
    """Give commands that work on what the run has left, by what they are for."""
    files = {name: shlex.quote(path) for name, path in summary.files.items()}
    store = f"--store {files['releases']}"
    sql = (
        "SELECT name, share, share_low, share_high FROM hours "
        "WHERE section = 'kernel_mix' AND told ORDER BY share DESC"
    )
    both = f"{files['leader_transcript']} {files['helper_transcript']}"
    signed = f"--leader {summary.leader_pk} --helper {summary.helper_pk}"
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
        "the fleet's pages again": pages_command(summary.files["releases"]),
        **{what: f"{_COMMAND} {words}" for what, words in commands.items()},
    }


def events_of(tally: DemoTally) -> dict[str, Struck]:
    """Give the release of each event section, in the order they are shown."""
    return {section: tally.struck(section) for section in EVENTS}


def _counted(coverage: Sequence[SectionCoverage]) -> tuple[int, int]:
    """How many intervals held the truth, of how many, all sections together."""
    total = next((one.values for one in coverage if one.section == TOTAL), None)
    return (total.hits, total.trials) if total else (0, 0)


def _binomial_bounds(checked: int) -> tuple[float, float]:
    """Give the 95 % range of how many of `checked` intervals hold the truth by chance."""
    from scipy.special import bdtr  # not scipy.stats, which takes a second to load

    chances = bdtr(np.arange(max(checked, 1) + 1.0), max(checked, 1), 0.95)
    low, high = np.searchsorted(chances, (0.025, 0.975))
    return float(low), float(high)


def _draw(fleet: DemoFleet, tally: DemoTally, path: Path) -> None:
    from pointillist.run_chart import draw  # matplotlib loads slowly: not while a fleet starts

    plan, by_window, events = fleet.options.plan, tally.mix, events_of(tally)
    title = (
        f"Pointillist demo: {plan.roster:,} hosts, {plan.gpus:,} GPUs, "
        f"{len(by_window)} windows, epsilon {fleet.tasks[0].epsilon_millionths / 1e6:g}"
    )
    shown = {name: events[name] for name in ("incidents", "hardware_faults") if events[name].hosts}
    draw(path, title, tally.mean.mean(), by_window, shown)


def _transcripts(fleet: DemoFleet) -> tuple[Transcript, Transcript]:
    """Read the Leader's and the Helper's."""
    leader, helper = fleet.folders.leader / "state", fleet.folders.helper / "state"
    return read_transcript(leader / "leader.sqlite"), read_transcript(helper / "helper.sqlite")


def _compare_transcripts(fleet: DemoFleet) -> tuple[int, int, int, bool]:
    """Look for this host's reports in both transcripts, and whether these agree."""
    leader, helper = _transcripts(fleet)
    verdict = verify_transcripts(leader, helper, PinnedParties(fleet.leader_pk, fleet.helper_pk))
    ids = [bytes.fromhex(identity) for identity in live_reports(fleet)]
    found = [sum(1 for identity in ids if party.contains(identity)) for party in (leader, helper)]
    return len(ids), found[0], found[1], verdict.sound


def _error_percent(by_window: list[list[CellView]]) -> float:
    errors = [view.standard_error for views in by_window for view in views]
    return round(100 * statistics.median(errors), 3) if errors else float("nan")


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
