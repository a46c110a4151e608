"""What a demo run ends with: coverage, the live host's reports, and files."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aggregator.directory import PinnedParties
from aggregator.transcript import export_transcript, read_transcript, verify_transcripts

from .fleet import DemoFleet
from .plan import MIX_SERIES
from .run import epsilon_spent, event_sections, latencies_s, live_reports, rejections
from .screen import ranked
from .tally import Z95, CellView, Struck, Tally, expected_above_noise


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a script may want to know of a run; shares are of GPU wall time or of hosts.

    event_hosts   by section, the hosts accepted in its window: what its shares are of
    """

    hosts: int
    gpus: int
    windows: int
    windows_released: int
    epsilon: float
    delta: float
    epsilon_spent: float
    standard_error_percent_window: float
    families_above_noise: int
    families_above_noise_expected: float
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
    files: dict[str, str]


def summarise(fleet: DemoFleet, tally: Tally, output: Path) -> Summary:
    """Write chart, released Parquet, transcripts and summary.json into `output`.

    Raises      StateUnusable when a party's state cannot be read
    """
    mean = tally.running_mean(MIX_SERIES, "kernel_mix")
    windows = tally.windows(MIX_SERIES)
    by_window = [tally.section(MIX_SERIES, "kernel_mix", window) for window in windows]
    events = events_of(fleet, tally)
    files = _write_files(fleet, output, mean, by_window, events)
    covered, checked = tally.coverage()
    low, high = _binomial_bounds(checked)
    waits = sorted(latencies_s(fleet)) or [float("nan")]
    sent, in_leader, in_helper, agree = _transcripts(fleet, output)
    task = fleet.tasks[0]
    summary = Summary(
        hosts=fleet.options.plan.roster,
        gpus=fleet.options.plan.gpus,
        windows=fleet.options.plan.windows,
        windows_released=len(windows),
        epsilon=task.epsilon_millionths / 1e6,
        delta=task.delta_1e12 / 1e12,
        epsilon_spent=round(epsilon_spent(fleet, tally), 4),
        standard_error_percent_window=_error_percent(by_window),
        families_above_noise=sum(1 for v in mean if _is_family(v) and not v.below_noise),
        families_above_noise_expected=round(
            expected_above_noise([v for v in mean if _is_family(v)]), 1
        ),
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
        events={name: [_cell(view) for view in ranked(one.views)] for name, one in events.items()},
        event_hosts={name: one.hosts for name, one in events.items()},
        files=files,
    )
    (output / "summary.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary


def events_of(fleet: DemoFleet, tally: Tally) -> dict[str, Struck]:
    """Give the release of each event section, in the order they are shown."""
    return {
        section: tally.struck(series, section, fleet.last_window)
        for series, section in event_sections()
    }


def _binomial_bounds(checked: int) -> tuple[float, float]:
    """Give the 95 % range of how many of `checked` intervals hold the truth by chance."""
    from scipy.stats import binom  # a second to load: only at the end of a run

    low, high = binom.interval(0.95, max(checked, 1), 0.95)
    return float(low), float(high)


def _write_files(
    fleet: DemoFleet,
    output: Path,
    mean: list[CellView],
    by_window: list[list[CellView]],
    events: dict[str, Struck],
) -> dict[str, str]:
    from .chart import draw  # matplotlib takes seconds to load: not while the fleet starts

    plan = fleet.options.plan
    title = (
        f"Pointillist demo: {plan.roster:,} hosts, {plan.gpus:,} GPUs, "
        f"{len(by_window)} windows, epsilon {fleet.tasks[0].epsilon_millionths / 1e6:g}"
    )
    chart, releases = output / "demo.png", output / "releases"
    shown = {name: events[name] for name in ("incidents", "hardware_faults")}
    draw(chart, title, mean, by_window, shown)
    shutil.copytree(fleet.folders.releases, releases)
    return {
        "chart": str(chart),
        "releases": str(releases),
        "summary": str(output / "summary.json"),
        "leader_transcript": str(output / "leader-transcript.json"),
        "helper_transcript": str(output / "helper-transcript.json"),
    }


def _transcripts(fleet: DemoFleet, output: Path) -> tuple[int, int, int, bool]:
    """Export and compare both transcripts; look for this host's reports in each."""
    folders = fleet.folders
    leader = read_transcript(folders.leader / "state" / "leader.sqlite")
    helper = read_transcript(folders.helper / "state" / "helper.sqlite")
    export_transcript(leader, output / "leader-transcript.json")
    export_transcript(helper, output / "helper-transcript.json")
    verdict = verify_transcripts(leader, helper, PinnedParties(fleet.leader_pk, fleet.helper_pk))
    ids = [bytes.fromhex(one) for one in live_reports(fleet)]
    found = [sum(1 for one in ids if party.contains(one)) for party in (leader, helper)]
    return len(ids), found[0], found[1], verdict.sound


def _is_family(view: CellView) -> bool:
    return view.cell.startswith("gpu_time/")


def _error_percent(by_window: list[list[CellView]]) -> float:
    errors = [view.standard_error for views in by_window for view in views]
    return round(100 * statistics.median(errors), 3) if errors else float("nan")


def _cell(view: CellView) -> dict[str, Any]:
    half = Z95 * view.standard_error
    return {
        "cell": view.cell,
        "released_share": None if view.below_noise else round(view.released, 6),
        "low": round(view.released - half, 6),
        "high": round(view.released + half, 6),
        "standard_error": round(view.standard_error, 6),
        "truth": None if view.truth is None else round(view.truth, 6),
        "below_noise": view.below_noise,
    }
