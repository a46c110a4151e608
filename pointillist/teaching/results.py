"""Figures and tables of an evaluation as they are written; what was not recorded is absent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from diagnosis.detect.findings import Cause

from .evaluation import MethodEvaluation, recorded_causes
from .figures import (
    AUROC_GOAL,
    CAUSE_GOAL_S,
    DETECT_GOAL_S,
    GPU_CAUSES,
    HOST_CAUSES,
    HOURS_A_DAY,
    HOURS_A_WEEK,
    MACRO_F1_GOAL,
    IntervalEstimate,
    Pair,
    accuracy_of,
    alarm_rate,
    all_pairs,
    delays,
    detected_share,
    gpu_run,
    host_part,
    macro_f1,
    macro_f1_of,
    open_set,
    percentile,
    seconds_of,
    single,
)
from .outcomes import Judged, Outcome
from .result_tables import tables_of


@dataclass(frozen=True, slots=True)
class Line:
    """One figure; goal None where the design asks for none."""

    name: str
    value: float
    unit: str
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What is written down.

    absent   figures that this evaluation could not give, each with its reason
    """

    lines: tuple[Line, ...]
    tables: Mapping[str, Any]
    absent: Mapping[str, str]


class _Lines:
    """Collects figures; NaN becomes an absence with its reason."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.absent: dict[str, str] = {}

    def add(
        self, name: str, value: float, unit: str, why_not: str, goal: float | None = None
    ) -> None:
        """Take a figure, or the reason why there is none."""
        if isnan(value):
            self.absent[name] = why_not
        else:
            self.lines.append(Line(name, round(float(value), 6), unit, goal))

    def estimate(
        self, name: str, found: IntervalEstimate, unit: str, why_not: str, goal: float | None = None
    ) -> None:
        """Take a figure with its interval."""
        self.add(name, found.value, unit, why_not, goal)
        if not isnan(found.value):
            self.add(f"{name}_low", found.low, f"{unit}, 95 % interval by run", "one run alone")
            self.add(f"{name}_high", found.high, f"{unit}, 95 % interval by run", "one run alone")


def results_of(found: MethodEvaluation) -> Results:
    """Give every figure and table of an evaluation."""
    out = _Lines()
    _causes(out, found)
    _gpu(out, found)
    _unknown(out, found)
    _times(out, found)
    _early(out, found)
    _alarms(out, found)
    return Results(tuple(out.lines), tables_of(found), out.absent)


def _causes(out: _Lines, found: MethodEvaluation) -> None:
    judged, rhythm = host_part(found.shipped), host_part(found.rhythm)
    unit, why = "F1", "no held-out run of a fault with impact is recorded"
    out.estimate("macro_f1_heldout", macro_f1_of(judged), unit, why, MACRO_F1_GOAL)
    out.estimate("macro_f1_heldout_ungated", macro_f1_of(judged, gated=False), unit, why)
    with_quiet = macro_f1(all_pairs(judged, quiet=True))
    unit_quiet = "F1, alarms of quiet hours too"
    out.add("macro_f1_heldout_with_quiet_hours", with_quiet, unit_quiet, why)
    out.estimate("macro_f1_heldout_rhythm_only", macro_f1_of(rhythm), unit, why)
    out.estimate("accuracy_heldout", accuracy_of(judged), "share of faults with impact", why)
    out.estimate("accuracy_heldout_rhythm_only", accuracy_of(rhythm), "share of faults", why)
    seconds = [pair for run in judged for pair in seconds_of(run)]
    out.add("macro_f1_heldout_by_second", macro_f1(seconds), "F1, every second on its own", why)
    outcomes = single(judged)
    out.add("heldout_faults_with_impact", len(outcomes) or np.nan, "faults", why)
    out.add("heldout_faults", len(single(judged, gated=False)) or np.nan, "faults", why)
    told = recorded_causes(found.facts)
    missing = [cause.value for cause in HOST_CAUSES if cause not in told]
    if missing:
        out.absent["classes"] = f"not recorded: {', '.join(missing)}"


def _gpu(out: _Lines, found: MethodEvaluation) -> None:
    runs = [run for run in found.shipped if gpu_run(run)]
    faults: list[Pair] = [
        (outcome.episode.causes[0], outcome.answer)
        for run in runs
        for outcome in single([run], gated=False)
        if outcome.episode.causes[0] in GPU_CAUSES
    ]
    causes = [cause for cause in Cause if any(truth is cause for truth, _ in faults)]
    scores = [_f1(faults, cause) for cause in causes]
    value = float(np.mean(scores)) if scores else float("nan")
    out.add("gpu_fault_f1", value, f"F1 over {len(causes)} GPU causes", "no GPU fault is recorded")


def _f1(pairs: Sequence[Pair], cause: Cause) -> float:
    hits = sum(truth is cause and answer is cause for truth, answer in pairs)
    return 2 * hits / sum((truth is cause) + (answer is cause) for truth, answer in pairs)


def _unknown(out: _Lines, found: MethodEvaluation) -> None:
    area, unknown, known = open_set(host_part(found.shipped))
    why = "the shipped diagnoser tells no likeness, or no unknown fault was detected"
    out.estimate("open_set_auroc", area, "probability", why, AUROC_GOAL)
    out.add("open_set_unknown_faults", unknown or np.nan, "faults", why)
    out.add("open_set_known_faults", known or np.nan, "faults", why)


def _times(out: _Lines, found: MethodEvaluation) -> None:
    outcomes = single(host_part(found.shipped))
    why = "no held-out fault with impact was detected"
    unit = "s from impact, of those found"
    out.add("detected_share", detected_share(outcomes), "share of faults with impact", why)
    out.add("detect_p50_s", delays(outcomes, 50), unit, why)
    out.add("detect_p95_s", delays(outcomes, 95), unit, why, DETECT_GOAL_S)
    named = "s from impact, of those whose right cause stood to the end"
    out.add("cause_p50_s", delays(outcomes, 50, cause=True), named, why)
    out.add("cause_p95_s", delays(outcomes, 95, cause=True), named, why, CAUSE_GOAL_S)
    before = [outcome.detect_s == 0 for outcome in outcomes if outcome.detect_s is not None]
    ahead = float(np.mean(before)) if before else float("nan")
    out.add("detected_before_impact_share", ahead, "share of those found, counted as 0 s", why)


def _early(out: _Lines, found: MethodEvaluation) -> None:
    judged = host_part(found.shipped)
    leads = [
        outcome.lead_s for run in judged for outcome in run.outcomes if outcome.lead_s is not None
    ]
    right = sum(run.warnings_right for run in judged)
    wrong = sum(run.warnings_wrong for run in judged)
    value = right / (right + wrong) if right + wrong else float("nan")
    why = "no warning was given in held-out runs"
    out.add("early_warning_lead_s", percentile(leads, 50), "s, median", why)
    out.add("early_warning_lead_p10_s", percentile(leads, 10), "s", why)
    told = "share of warnings given in a fault, up to 60 s before its impact"
    out.add("early_warning_precision", value, told, why)
    out.add("early_warnings", right + wrong or np.nan, "warnings", why)
    growing = {run.name for run in found.facts if run.rising}
    slow = [outcome for run in judged if run.run in growing for outcome in single([run])]
    warned = (
        sum(outcome.lead_s is not None for outcome in slow) / len(slow) if slow else float("nan")
    )
    why = "no held-out fault that grows is recorded"
    out.add("early_warned_share", warned, f"share of {len(slow)} growing faults with impact", why)


def _alarms(out: _Lines, found: MethodEvaluation) -> None:
    why = "no held-out run without a fault is recorded"
    spikes = alarm_rate(found.shipped)
    heavy = alarm_rate(found.shipped, incidents=True)
    day, week = HOURS_A_DAY, HOURS_A_WEEK
    out.add("false_alarms_per_host_day", spikes.per(day), "alarms a host-day", why, 0.0)
    out.add("false_alarms_per_host_day_upper", spikes.upper(day), "95 % one-sided bound", why)
    out.add("false_alarm_worker_hours", spikes.worker_hours or np.nan, "hours", why, 12.0)
    out.add("false_alarms", spikes.alarms if spikes.worker_hours else np.nan, "alarms", why, 0.0)
    stolen = sum(alarm.stolen for run in found.shipped if run.calm for alarm in run.alarms)
    counted = stolen if spikes.worker_hours else np.nan
    out.add("false_alarms_while_stolen", counted, "alarms as the hypervisor took CPU time", why)
    unit = "incidents a host-week"
    out.add("false_incidents_per_host_week", heavy.per(week), unit, why, 0.0)
    out.add("false_incidents_per_host_week_upper", heavy.upper(week), "95 % one-sided bound", why)
    everything = alarm_rate(found.shipped_all)
    out.add("false_alarms_all_runs", everything.alarms, "alarms, training runs included", why)
    out.add("false_alarm_worker_hours_all_runs", everything.worker_hours or np.nan, "hours", why)


RATES_FORMAT: Final = 1
CAUSES: Final = tuple(Cause)
RATES_SECTION: Final = "incidents"
_NUMBERS: Final = re.compile(r"\[\s+((?:[\d.]+,?\s+)+)\]")


def incident_rates(judged: Iterable[Judged], model: str, about: str) -> dict[str, Any]:
    """Count which incidents held-out faults became, and those that came without a fault.

    The aggregator reads these counts, of runs of one fault each, and computes rates itself.

    judged   held-out runs
    model    name, version and hash, as diagnoses carry it
    about    one line: which recordings
    """
    runs = list(judged)
    told = [outcome for run in runs if (outcome := _of_run(run)) is not None]
    trials = [0] * len(CAUSES)
    counts = [[0] * len(CAUSES) for _ in CAUSES]
    for outcome in told:
        truth = CAUSES.index(outcome.episode.causes[0])
        trials[truth] += 1
        if outcome.incident is not None:
            counts[truth][CAUSES.index(outcome.incident)] += 1
    calm = [run for run in runs if run.calm]
    found = [alarm.incident for run in calm for alarm in run.alarms]
    return {
        "format": RATES_FORMAT,
        "model": model,
        "section": RATES_SECTION,
        "classes": [str(cause) for cause in CAUSES],
        "trials": trials,
        "counts": counts,
        "worker_hours": round(sum(run.worker_hours for run in calm), 4),
        "false_incidents": [sum(incident is cause for incident in found) for cause in CAUSES],
        "about": about,
    }


def _of_run(run: Judged) -> Outcome | None:
    """One fault a run: of several subjects that felt it, the one with the largest rise."""
    felt: Sequence[Outcome] = [
        outcome
        for outcome in run.outcomes
        if len(outcome.episode.causes) == 1 and outcome.episode.impact
    ]
    return max(felt, key=lambda outcome: outcome.episode.rise or 0.0, default=None)


def write_rates(path: Path, rates: dict[str, Any]) -> None:
    """Write the counts, a row of the matrix a line."""
    text = _NUMBERS.sub(_one_line, json.dumps(rates, indent=1))
    path.write_text(text + "\n", encoding="utf-8")


def _one_line(found: re.Match[str]) -> str:
    return f"[{', '.join(found[1].replace(',', ' ').split())}]"
