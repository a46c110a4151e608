"""Fill the README's figures from committed results, or check that it quotes them as they are.

python scripts/readme_figures.py            rewrites the table
python scripts/readme_figures.py --check    exit code 1 when the table differs
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "<!-- figures: scripts/readme_figures.py -->"
END = "<!-- end of figures -->"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: where the number stands and how it is written."""

    text: str
    results: str
    key: str
    format: str
    goal: str = ""


FIGURES = (
    Figure(
        "Both aggregators, one round of 100,000 reports, 1,000 coordinates",
        "round", "core_seconds_100k_d1000", "{:.1f} core-seconds", "under 10",
    ),
    Figure(
        "The same with 10,000 coordinates",
        "round", "core_seconds_100k_d10000", "{:.1f} core-seconds",
    ),
    Figure(
        "Opening 100,000 epochs, once an hour",
        "round", "epoch_core_seconds_100k", "{:.1f} core-seconds",
    ),
    Figure(
        "Arithmetic over its floor in the same run, 1,000 coordinates",
        "round", "arithmetic_over_floor_d1000", "{:.2f}", "at most 2",
    ),
    Figure(
        "Arithmetic over its floor, 10,000 coordinates",
        "round", "arithmetic_over_floor_d10000", "{:.2f}", "at most 2",
    ),
    Figure(
        "Cost per report at 100,000 hosts over that at 1,000",
        "round", "cost_growth_1k_to_100k", "{:.2f}", "at most 1.15",
    ),
    Figure(
        "An agent's CPU per report: encode, noise, mask, seal",
        "round", "publish_us_per_report_d1000", "{:,.0f} us",
    ),
    Figure(
        "An agent with everything at 100 Hz: user-space CPU",
        "agent", "agent_core_percent_100hz", "{:.2f} % of a core", "under 0.25 %",
    ),
    Figure(
        "The same with eight simulated GPUs",
        "agent", "agent_core_percent_with_8_gpus", "{:.2f} % of a core",
    ),
    Figure(
        "Its BPF programs, by their own account",
        "agent", "bpf_core_percent_100hz", "{:.2f} % of a core",
    ),
    Figure(
        "They add to a context switch",
        "agent", "bpf_ns_per_context_switch", "{:.0f} ns", "at most 200",
    ),
    Figure("Its resident memory", "agent", "agent_rss_mib", "{:.0f} MiB", "at most 120"),
    Figure(
        "The 100 Hz sampler's share of it, with its maps",
        "agent", "bpf_maps_and_sampler_mib", "{:.1f} MiB", "at most 4",
    ),
    Figure(
        "Slowdown of a workload at up to 10,000 switches a second",
        "agent", "workload_slowdown_percent", "{:.2f} %", "under 0.5",
    ),
    Figure(
        "Its 95 % interval, from (wide where other work ran beside)",
        "agent", "workload_slowdown_percent_low", "{:.2f} %",
    ),
    Figure("Its 95 % interval, to", "agent", "workload_slowdown_percent_high", "{:.2f} %"),
    Figure(
        "node_exporter scraped every second, in the same run",
        "agent", "node_exporter_core_percent_1s", "{:.2f} % of a core",
    ),
    Figure(
        "Demo: end of a window to its release, 90th percentile",
        "demo", "window_end_to_release_p90_s", "{:.1f} s", "at most 8",
    ),
    Figure(
        "Demo: 95 % intervals that hold the true value",
        "demo", "interval_coverage_percent", "{:.1f} %",
    ),
    Figure(
        "Planted sampler bugs caught by the audit",
        "audit", "audit_planted_bugs_caught", "{:.0f}", "all",
    ),
    Figure("Planted sampler bugs", "audit", "audit_planted_bugs", "{:.0f}"),
    Figure("Trials of the audit", "audit", "audit_trials", "{:,.0f}"),
    Figure(
        "GPU time that no family rule names, median of ten recorded traces",
        "families", "other_percent_median", "{:.1f} %", "below 1 %",
    ),
    Figure(
        "The same, worst trace", "families", "other_percent_worst", "{:.1f} %", "below 5 %",
    ),
    Figure(
        "Kernel names that no rule was written from, classed right",
        "families", "heldout_name_accuracy_percent", "{:.0f} %",
    ),
    Figure(
        "Applications never learned that are taken for a known one, by launches",
        "signatures", "application_launches_false_accept_percent", "{:.0f} % of 14",
    ),
    Figure(
        "A probed launch, on `push`: CPU time added",
        "probes", "ns_per_launch_push", "{:,.0f} ns", "no dearer than bpftrace",
    ),
    Figure("bpftrace counting the same launches", "probes", "ns_per_launch_bpftrace", "{:,.0f} ns"),
    Figure(
        "A process at 50,000 launches a second, slowed by governed probes",
        "probes", "governor_overhead_percent_50k", "{:.2f} %", "at most 0.5 %",
    ),
    Figure(
        "Error of its corrected count",
        "probes", "governor_count_error_percent_50k", "{:.1f} %", "at most 5 %",
    ),
    Figure(
        "Agent's own CPU at 20,000 launches a second, nothing governed",
        "probes", "agent_core_percent_20k", "{:.2f} % of a core", "below 1 %",
    ),
    Figure(
        "Launches not counted, flat out", "probes", "launches_lost_flat_out", "{:,.0f}", "none",
    ),
    Figure(
        "100,000 simulated GPUs, real noise and masks: faster than real time",
        "simulator", "masked_times_real_time_100k", "{:.0f} times", "at least 60",
    ),
    Figure(
        "The same with every report sealed, sent and summed",
        "simulator", "exact_times_real_time_100k", "{:.0f} times", "above 1",
    ),
    Figure(
        "Its peak memory", "simulator", "peak_memory_gib", "{:.1f} GiB", "under 8",
    ),
    Figure(
        "Hours until 99 % of 84 applications have been seen, 10 % load, epsilon 2",
        "simulator", "hours_to_99_percent_applications", "{:.0f} h",
    ),
    Figure(
        "Simulated 95 % intervals that hold the true value",
        "simulator", "interval_coverage_percent", "{:.1f} %",
    ),
    Figure(
        "Causes of slow steps on held-out real faults, macro-F1",
        "diagnosis", "macro_f1_heldout", "{:.2f}", "at least 0.92",
    ),
    Figure(
        "The same: held-out faults with impact",
        "diagnosis", "heldout_faults_with_impact", "{:.0f}",
    ),
    Figure(
        "Share of them named right", "diagnosis", "accuracy_heldout", "{:.2f}",
    ),
    Figure(
        "From impact to detection, 95th percentile", "diagnosis", "detect_p95_s", "{:.1f} s",
        "at most 3",
    ),
    Figure(
        "From impact to the right cause, 95th percentile", "diagnosis", "cause_p95_s", "{:.1f} s",
        "at most 5",
    ),
    Figure(
        "False alarms in fault-free running and hard negatives", "diagnosis", "false_alarms",
        "{:.0f}", "none",
    ),
    Figure(
        "Of these, as the hypervisor took CPU time", "diagnosis", "false_alarms_while_stolen",
        "{:.0f}",
    ),
    Figure(
        "Worker-hours of that running", "diagnosis", "false_alarm_worker_hours", "{:.2f} h",
        "at least 12",
    ),
)  # fmt: skip


def table(results_folder: Path) -> str:
    """The Markdown table of every figure that has a committed result."""
    rows = [row for figure in FIGURES if (row := _row(figure, results_folder))]
    if not rows:
        return "No results are committed yet."
    return "\n".join(["| what | measured | goal |", "|---|---|---|", *rows])


def _row(figure: Figure, folder: Path) -> str | None:
    path = folder / f"{figure.results}.json"
    if not path.exists():
        return None
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    values = {one["name"]: one["value"] for one in figures}
    if figure.key not in values:
        return None
    value = figure.format.format(values[figure.key])
    return f"| {figure.text} | {value} | {figure.goal} |"


def with_figures(readme: str, figures: str) -> str:
    """The README with its table replaced.

    Raises      ValueError when the two marks are not there once each
    """
    if readme.count(START) != 1 or readme.count(END) != 1:
        raise ValueError(f"README.md: expected {START!r} and {END!r} once each")
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{figures}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check = parser.parse_args().check
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    fresh = with_figures(readme, table(ROOT / "bench" / "results"))
    if fresh == readme:
        return 0
    if check:
        print("README.md quotes other figures than bench/results; scripts/readme_figures.py")
        return 1
    path.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
