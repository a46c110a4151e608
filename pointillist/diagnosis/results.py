"""Figures and tables of an evaluation as they are written; what was not recorded is absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Final

import numpy as np

from edge_agent.diagnosis.findings import Cause

from .comparison import Compared, held_out_for
from .evaluation import Evaluation, recorded_causes
from .figures import (
    GPU_CAUSES,
    HOST_CAUSES,
    HOURS_A_DAY,
    HOURS_A_WEEK,
    ClassRow,
    Pair,
    accuracy_of,
    alarm_rate,
    class_rows,
    confusion,
    delays,
    detected_share,
    macro_f1,
    macro_f1_of,
    open_set,
    pairs_of,
    seconds_of,
    single,
)
from .intervals import Estimate, percentile
from .outcomes import Judged
from .runs import Kind
from .splits import Why

MACRO_F1_GOAL: Final = 0.92
AUROC_GOAL: Final = 0.95
DETECT_GOAL_S: Final = 3.0
CAUSE_GOAL_S: Final = 5.0

Row = dict[str, Any]


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
        self, name: str, found: Estimate, unit: str, why_not: str, goal: float | None = None
    ) -> None:
        """Take a figure with its interval."""
        self.add(name, found.value, unit, why_not, goal)
        if not isnan(found.value):
            self.add(f"{name}_low", found.low, f"{unit}, 95 % interval by run", "one run alone")
            self.add(f"{name}_high", found.high, f"{unit}, 95 % interval by run", "one run alone")


def results_of(found: Evaluation) -> Results:
    """Give every figure and table of an evaluation."""
    out = _Lines()
    _causes(out, found)
    _gpu(out, found)
    _unknown(out, found)
    _times(out, found)
    _early(out, found)
    _alarms(out, found)
    return Results(tuple(out.lines), tables_of(found), out.absent)


def host_part(judged: Iterable[Judged]) -> list[Judged]:
    """Leave out runs of GPU faults: they have figures of their own."""
    return [run for run in judged if not _gpu_run(run)]


def _gpu_run(run: Judged) -> bool:
    return any(cause in GPU_CAUSES for one in run.outcomes for cause in one.episode.causes)


def _causes(out: _Lines, found: Evaluation) -> None:
    judged, rhythm = host_part(found.shipped), host_part(found.rhythm)
    unit, why = "F1", "no held-out run of a fault with impact is recorded"
    out.estimate("macro_f1_heldout", macro_f1_of(judged), unit, why, MACRO_F1_GOAL)
    out.estimate("macro_f1_heldout_ungated", macro_f1_of(judged, gated=False), unit, why)
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


def _gpu(out: _Lines, found: Evaluation) -> None:
    runs = [run for run in found.shipped if _gpu_run(run)]
    faults: list[Pair] = [
        (one.episode.causes[0], one.answer)
        for run in runs
        for one in single([run], gated=False)
        if one.episode.causes[0] in GPU_CAUSES
    ]
    causes = [cause for cause in Cause if any(truth is cause for truth, _ in faults)]
    scores = [_f1(faults, cause) for cause in causes]
    value = float(np.mean(scores)) if scores else float("nan")
    out.add("gpu_fault_f1", value, f"F1 over {len(causes)} GPU causes", "no GPU fault is recorded")


def _f1(pairs: Sequence[Pair], cause: Cause) -> float:
    hits = sum(truth is cause and answer is cause for truth, answer in pairs)
    return 2 * hits / sum((truth is cause) + (answer is cause) for truth, answer in pairs)


def _unknown(out: _Lines, found: Evaluation) -> None:
    area, unknown, known = open_set(host_part(found.shipped))
    why = "the shipped diagnoser tells no likeness, or no unknown fault was detected"
    out.estimate("open_set_auroc", area, "probability", why, AUROC_GOAL)
    out.add("open_set_unknown_faults", unknown or np.nan, "faults", why)
    out.add("open_set_known_faults", known or np.nan, "faults", why)


def _times(out: _Lines, found: Evaluation) -> None:
    outcomes = single(host_part(found.shipped))
    why = "no held-out fault with impact was detected"
    unit = "s from impact, of those found"
    out.add("detected_share", detected_share(outcomes), "share of faults with impact", why)
    out.add("detect_p50_s", delays(outcomes, 50), unit, why)
    out.add("detect_p95_s", delays(outcomes, 95), unit, why, DETECT_GOAL_S)
    out.add("cause_p50_s", delays(outcomes, 50, cause=True), unit, why)
    out.add("cause_p95_s", delays(outcomes, 95, cause=True), unit, why, CAUSE_GOAL_S)


def _early(out: _Lines, found: Evaluation) -> None:
    judged = host_part(found.shipped)
    leads = [one.lead_s for run in judged for one in run.outcomes if one.lead_s is not None]
    right = sum(run.warnings_right for run in judged)
    wrong = sum(run.warnings_wrong for run in judged)
    value = right / (right + wrong) if right + wrong else float("nan")
    why = "no warning was given in held-out runs"
    out.add("early_warning_lead_s", percentile(leads, 50), "s, median", why)
    out.add("early_warning_lead_p10_s", percentile(leads, 10), "s", why)
    out.add("early_warning_precision", value, "share of warnings that an impact followed", why)
    out.add("early_warnings", right + wrong or np.nan, "warnings", why)


def _alarms(out: _Lines, found: Evaluation) -> None:
    why = "no held-out run without a fault is recorded"
    spikes = alarm_rate(found.shipped)
    heavy = alarm_rate(found.shipped, incidents=True)
    day, week = HOURS_A_DAY, HOURS_A_WEEK
    out.add("false_alarms_per_host_day", spikes.per(day), "alarms a host-day", why, 0.0)
    out.add("false_alarms_per_host_day_upper", spikes.upper(day), "95 % one-sided bound", why)
    out.add("false_alarm_worker_hours", spikes.worker_hours or np.nan, "hours", why, 12.0)
    out.add("false_alarms", spikes.alarms if spikes.worker_hours else np.nan, "alarms", why, 0.0)
    unit = "incidents a host-week"
    out.add("false_incidents_per_host_week", heavy.per(week), unit, why, 0.0)
    out.add("false_incidents_per_host_week_upper", heavy.upper(week), "95 % one-sided bound", why)
    everything = alarm_rate(found.shipped_all)
    out.add("false_alarms_all_runs", everything.alarms, "alarms, training runs included", why)
    out.add("false_alarm_worker_hours_all_runs", everything.worker_hours or np.nan, "hours", why)


def tables_of(found: Evaluation) -> dict[str, Any]:
    """Give the tables beside the figures, as JSON takes them."""
    judged = host_part(found.shipped)
    gated = [pair for run in judged for pair in pairs_of(run)]
    return {
        "shipped": found.name,
        "split": {
            "seed": found.divided.seed,
            "train": list(found.divided.train),
            "held_out": {k: sorted(why) for k, why in sorted(found.divided.held_out.items())},
        },
        "seeds": {one.name: one.seed for one in found.facts},
        "runs": dict(_runs_by_kind(found)),
        "methods": [_method_row(one) for one in found.compared],
        "classes": [_class_row(row) for row in class_rows(gated)],
        "classes_rhythm_only": [
            _class_row(row)
            for pairs in [[p for run in host_part(found.rhythm) for p in pairs_of(run)]]
            for row in class_rows(pairs)
        ],
        "confusion": {
            "causes": [str(cause) for cause in Cause],
            "columns": [*(str(cause) for cause in Cause), "nothing"],
            "diagnoses": confusion(gated),
            "incidents": _incident_confusion(judged),
        },
        "held_out_by": [_rule_row(found, why) for why in Why],
        "overlaps": _overlaps(judged),
        "alarms_by_negative": _by_negative(found),
        "ablation": {
            "kind": found.ablated_kind,
            "groups": [
                {"group": one.group, "without": _told(one.without), "alone": _told(one.alone)}
                for one in found.ablated
            ],
        },
        "open_set": _scores(judged),
        "misses": _misses(judged),
    }


def _runs_by_kind(found: Evaluation) -> Iterable[tuple[str, int]]:
    for kind in Kind:
        yield str(kind), sum(one.kind is kind for one in found.facts)


def _method_row(one: Compared) -> Row:
    if one.skipped:
        return {"method": one.name, "skipped": one.skipped}
    judged = host_part(one.judged)
    outcomes, alarms = single(judged), alarm_rate(judged)
    score = macro_f1_of(judged)
    area, _, _ = open_set(judged)
    return {
        "method": one.name,
        "macro_f1": _told(score.value),
        "macro_f1_interval": [_told(score.low), _told(score.high)],
        "macro_f1_ungated": _told(macro_f1([p for run in judged for p in pairs_of(run, False)])),
        "macro_f1_by_second": _told(macro_f1([p for run in judged for p in seconds_of(run)])),
        "accuracy": _told(accuracy_of(judged).value),
        "detected": _told(detected_share(outcomes)),
        "detect_p50_s": _told(delays(outcomes, 50)),
        "detect_p95_s": _told(delays(outcomes, 95)),
        "cause_p95_s": _told(delays(outcomes, 95, cause=True)),
        "open_set_auroc": _told(area.value),
        "false_alarms": alarms.alarms,
        "false_alarms_per_host_day": _told(alarms.per(HOURS_A_DAY)),
    }


def _class_row(row: ClassRow) -> Row:
    return {
        "cause": str(row.cause),
        "faults": row.trials,
        "precision": _told(row.precision),
        "precision_interval": [_told(one) for one in row.precision_interval],
        "recall": _told(row.recall),
        "recall_interval": [_told(one) for one in row.recall_interval],
        "f1": _told(row.f1),
    }


def _rule_row(found: Evaluation, why: Why) -> Row:
    judged = host_part(held_out_for(found.shipped, found.divided, why))
    outcomes = single(judged)
    return {
        "held_out_by": str(why),
        "runs": len(judged),
        "faults_with_impact": len(outcomes),
        "right": sum(one.right for one in outcomes),
        "accuracy": _told(accuracy_of(judged).value) if outcomes else None,
    }


def _incident_confusion(judged: Sequence[Judged]) -> list[list[int]]:
    faults = [(one.episode.causes[0], one.incident) for one in single(judged)]
    alarms = [(None, one.incident) for run in judged for one in run.alarms if one.incident]
    return confusion([*faults, *alarms])


def _overlaps(judged: Sequence[Judged]) -> Row:
    pairs = [
        one
        for run in judged
        for one in run.outcomes
        if len(one.episode.causes) > 1 and one.episode.impact
    ]
    both = sum({one.answer, one.second} == set(one.episode.causes) for one in pairs)
    return {
        "pairs": len(pairs),
        "first_is_one_of_them": sum(one.right for one in pairs),
        "first_two_are_both": both,
    }


def _by_negative(found: Evaluation) -> list[Row]:
    kind = {one.name: one.negative or str(one.kind) for one in found.facts}
    names = sorted({kind[run.run] for run in found.shipped_all if run.calm})
    rows = []
    for name in names:
        runs = [run for run in found.shipped_all if run.calm and kind[run.run] == name]
        rows.append({
            "what": name,
            "worker_hours": _told(sum(run.worker_hours for run in runs)),
            "alarms": sum(len(run.alarms) for run in runs),
            "incidents": sum(one.incident is not None for run in runs for one in run.alarms),
        })  # fmt: skip
    return rows


def _scores(judged: Sequence[Judged]) -> list[Row]:
    return [
        {"unknown": one.episode.causes[0] is Cause.UNKNOWN, "unlike": _told(one.unlike)}
        for one in single(judged)
        if not isnan(one.unlike)
    ]


def _misses(judged: Sequence[Judged]) -> list[Row]:
    return [
        {
            "run": one.episode.run,
            "subject": one.episode.subject,
            "cause": str(one.episode.causes[0]),
            "answer": str(one.answer) if one.answer else "nothing",
            "rise": _told(one.episode.rise if one.episode.rise is not None else np.nan),
        }
        for one in single(judged)
        if not one.right
    ]


def _told(value: float) -> float | None:
    """JSON knows no NaN."""
    return None if np.isnan(value) else round(float(value), 4)
