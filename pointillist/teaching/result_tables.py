"""Tables of an evaluation beside its figures, as JSON takes them: no NaN, names as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isnan
from typing import Any, Final

import numpy as np

from diagnosis.detect.findings import Cause
from kernels.wilson import wilson_interval

from .comparison import MethodScores, held_out_for
from .evaluation import MethodEvaluation
from .figures import (
    HOURS_A_DAY,
    ClassRow,
    accuracy_of,
    alarm_rate,
    all_pairs,
    class_rows,
    confusion,
    delays,
    detected_share,
    host_part,
    known,
    macro_f1,
    macro_f1_of,
    open_set,
    seconds_of,
    single,
)
from .outcomes import Judged
from .recorded_runs import INTENSITIES, Facts, RunKind
from .splits import Why

Row = dict[str, Any]


def tables_of(found: MethodEvaluation) -> dict[str, Any]:
    """Give the tables beside the figures, as JSON takes them."""
    judged = host_part(found.shipped)
    gated = all_pairs(judged)
    anywhere = all_pairs(judged, quiet=True)
    return {
        "shipped": found.name,
        "split": {
            "seed": found.divided.seed,
            "train": list(found.divided.train),
            "held_out": {k: sorted(why) for k, why in sorted(found.divided.held_out.items())},
        },
        "seeds": {run.name: run.seed for run in found.facts},
        "runs": dict(_runs_by_kind(found)),
        "methods": [_method_row(scores) for scores in found.compared],
        "classes": [_class_row(row) for row in class_rows(gated)],
        "classes_rhythm_only": [
            _class_row(row) for row in class_rows(all_pairs(host_part(found.rhythm)))
        ],
        "confusion": {
            "causes": [str(cause) for cause in Cause],
            "columns": [*(str(cause) for cause in Cause), "nothing"],
            "diagnoses": confusion(anywhere),
            "incidents": _incident_confusion(judged),
        },
        "held_out_by": [_rule_row(found, why) for why in Why],
        "overlaps": _overlaps(judged),
        "alarms_by_negative": _by_negative(found),
        "ablation": {
            "kind": found.ablated_kind,
            "groups": [
                {"group": group.group, "without": known(group.without), "alone": known(group.alone)}
                for group in found.ablated
            ],
        },
        "open_set": _scores(judged),
        "calm": _calm(found.shipped),
        "by": breakdowns(found.facts, judged),
        "misses": _misses(found, judged),
    }


def _runs_by_kind(found: MethodEvaluation) -> Iterable[tuple[str, int]]:
    for kind in RunKind:
        yield str(kind), sum(run.kind is kind for run in found.facts)


def _method_row(scores: MethodScores) -> Row:
    if scores.skipped:
        return {"method": scores.name, "skipped": scores.skipped}
    judged = host_part(scores.judged)
    outcomes, alarms = single(judged), alarm_rate(judged)
    score = macro_f1_of(judged)
    area, _, _ = open_set(judged)
    return {
        "method": scores.name,
        "macro_f1": known(score.value),
        "macro_f1_interval": [known(score.low), known(score.high)],
        "macro_f1_ungated": known(macro_f1(all_pairs(judged, gated=False))),
        "macro_f1_by_second": known(macro_f1([p for run in judged for p in seconds_of(run)])),
        "accuracy": known(accuracy_of(judged).value),
        "detected": known(detected_share(outcomes)),
        "detect_p50_s": known(delays(outcomes, 50)),
        "detect_p95_s": known(delays(outcomes, 95)),
        "cause_p95_s": known(delays(outcomes, 95, cause=True)),
        "open_set_auroc": known(area.value),
        "false_alarms": alarms.alarms,
        "false_alarms_per_host_day": known(alarms.per(HOURS_A_DAY)),
    }


def _class_row(row: ClassRow) -> Row:
    return {
        "cause": str(row.cause),
        "faults": row.trials,
        "precision": known(row.precision),
        "precision_interval": [known(end) for end in row.precision_interval],
        "recall": known(row.recall),
        "recall_interval": [known(end) for end in row.recall_interval],
        "f1": known(row.f1),
    }


def _rule_row(found: MethodEvaluation, why: Why) -> Row:
    judged = host_part(held_out_for(found.shipped, found.divided, why))
    outcomes = single(judged)
    return {
        "held_out_by": str(why),
        "runs": len(judged),
        "faults_with_impact": len(outcomes),
        "right": sum(outcome.right for outcome in outcomes),
        "accuracy": known(accuracy_of(judged).value) if outcomes else None,
    }


def _incident_confusion(judged: Sequence[Judged]) -> list[list[int]]:
    faults = [(outcome.episode.causes[0], outcome.incident) for outcome in single(judged)]
    alarms = [(None, alarm.incident) for run in judged for alarm in run.alarms if alarm.incident]
    return confusion([*faults, *alarms])


def _overlaps(judged: Sequence[Judged]) -> Row:
    pairs = [
        outcome
        for run in judged
        for outcome in run.outcomes
        if len(outcome.episode.causes) > 1 and outcome.episode.impact
    ]
    both = sum({pair.answer, pair.second} == set(pair.episode.causes) for pair in pairs)
    return {
        "pairs": len(pairs),
        "first_is_one_of_them": sum(pair.right for pair in pairs),
        "first_two_are_both": both,
    }


def _by_negative(found: MethodEvaluation) -> list[Row]:
    kind = {run.name: run.negative or str(run.kind) for run in found.facts}
    names = sorted({kind[run.run] for run in found.shipped_all if run.calm})
    rows = []
    for name in names:
        runs = [run for run in found.shipped_all if run.calm and kind[run.run] == name]
        rows.append({
            "what": name,
            "worker_hours": known(sum(run.worker_hours for run in runs)),
            "alarms": sum(len(run.alarms) for run in runs),
            "incidents": sum(alarm.incident is not None for run in runs for alarm in run.alarms),
            "stolen": sum(alarm.stolen for run in runs for alarm in run.alarms),
        })  # fmt: skip
    return rows


def _scores(judged: Sequence[Judged]) -> list[Row]:
    return [
        {"unknown": outcome.episode.causes[0] is Cause.UNKNOWN, "unlike": known(outcome.unlike)}
        for outcome in single(judged)
        if not isnan(outcome.unlike)
    ]


def _calm(judged: Sequence[Judged]) -> Row:
    """Held-out runs without a fault, and how many of them passed in silence."""
    calm = [run for run in judged if run.calm]
    return {"runs": len(calm), "silent": sum(not run.alarms for run in calm)}


def _misses(found: MethodEvaluation, judged: Sequence[Judged]) -> list[Row]:
    facts = {run.name: run for run in found.facts}
    return [
        {
            "run": outcome.episode.run,
            "subject": outcome.episode.subject,
            "workload": facts[outcome.episode.run].workload,
            "injector": facts[outcome.episode.run].injectors[0],
            "intensity": facts[outcome.episode.run].intensity,
            "cause": str(outcome.episode.causes[0]),
            "answer": str(outcome.answer) if outcome.answer else "nothing",
            "rise": known(outcome.episode.rise if outcome.episode.rise is not None else np.nan),
        }
        for outcome in single(judged)
        if not outcome.right
    ]


BY: Final = ("intensity", "workload", "injector")


def breakdowns(facts: Iterable[Facts], judged: Sequence[Judged]) -> dict[str, list[Row]]:
    """Divide judged runs of single faults three ways; in each, every run is in one part."""
    known = {run.name: run for run in facts if run.kind is RunKind.FAULT}
    runs = [run for run in judged if run.run in known]
    keys: dict[str, Callable[[Facts], tuple[str, str]]] = {
        "intensity": lambda run: ("", run.intensity or "not said"),
        "workload": lambda run: ("", run.workload),
        "injector": lambda run: (str(run.faults[0].cause), run.injectors[0]),
    }
    return {by: _rows(by, known, runs, keys[by]) for by in BY}


def _rows(
    by: str,
    facts: dict[str, Facts],
    judged: Sequence[Judged],
    key: Callable[[Facts], tuple[str, str]],
) -> list[Row]:
    parts: dict[tuple[str, str], list[Judged]] = {}
    for run in judged:
        parts.setdefault(key(facts[run.run]), []).append(run)
    return [_row(by, cause, name, parts[cause, name]) for cause, name in sorted(parts, key=_place)]


def _place(part: tuple[str, str]) -> tuple[int, str, str]:
    """Intensities from the weakest up, everything else by its name."""
    cause, name = part
    return (INTENSITIES.index(name) if name in INTENSITIES else len(INTENSITIES), cause, name)


def _row(by: str, cause: str, name: str, judged: Sequence[Judged]) -> Row:
    outcomes = single(judged)
    right = sum(outcome.right for outcome in outcomes)
    return {
        by: name,
        "cause": cause,
        "runs": len(judged),
        "faults": len(outcomes),
        "without_impact": len(single(judged, gated=False)) - len(outcomes),
        "right": right,
        "right_interval": [round(end, 4) for end in wilson_interval(right, len(outcomes))],
        "detected": sum(outcome.detect_s is not None for outcome in outcomes),
        "macro_f1": known(macro_f1(all_pairs(judged))),
        "cause_p95_s": known(delays(outcomes, 95, cause=True)),
    }
