"""Figures and tables of an evaluation as they are written; what was not recorded is absent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Cause
from diagnosis.detect.rules import RULES_TITLE
from kernels.signature_learning import wilson_interval

from .figures import (
    CAUSE_GOAL_S,
    DETECT_GOAL_S,
    GPU_CAUSES,
    HOST_CAUSES,
    HOURS_A_DAY,
    HOURS_A_WEEK,
    MACRO_F1_GOAL,
    ClassRow,
    IntervalEstimate,
    Pair,
    accuracy_of,
    alarm_rate,
    all_pairs,
    class_rows,
    confusion,
    delays,
    detected_share,
    gpu_run,
    host_part,
    known,
    macro_f1,
    macro_f1_of,
    seconds_of,
    single,
)
from .outcomes import Judged, Outcome, judge, spells_of
from .runs import INTENSITIES, Facts, RecordedRun, RunKind, episodes
from .splits import Split, Why, split


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was found of a dataset.

    held_out   judged runs that nothing was set on, by measured steps; `rhythm`: by the rhythm alone
    """

    facts: tuple[Facts, ...]
    divided: Split
    held_out: tuple[Judged, ...]
    all_runs: tuple[Judged, ...]
    rhythm: tuple[Judged, ...]


def judged_run(run: RecordedRun, rhythm: bool = False) -> Judged:
    """Play a run through the diagnoser as an agent would; the truth stays what probes measured."""
    diagnoser = Diagnoser(source="rhythm" if rhythm else "measured")
    said = spells_of(found for frame in run.frames for found in diagnoser.handle(frame))
    return judge(run, episodes(run), said)


def evaluate(dataset: Iterable[RecordedRun], tell: Callable[[str], None]) -> Evaluation:
    facts: list[Facts] = []
    measured: list[Judged] = []
    rhythm: list[Judged] = []
    for run in dataset:
        tell(f"{run.facts.name}: {len(run.frames)} s recorded")
        facts.append(run.facts)
        measured.append(judged_run(run))
        rhythm.append(judged_run(run, rhythm=True))
    divided = split(facts)
    return Evaluation(
        tuple(facts),
        divided,
        tuple(run for run in measured if run.run in divided.held_out),
        tuple(measured),
        tuple(run for run in rhythm if run.run in divided.held_out),
    )


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    value: float
    unit: str
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What is written down; absent: figures that could not be given, each with its reason."""

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
        if isnan(value):
            self.absent[name] = why_not
        else:
            self.lines.append(Line(name, round(float(value), 6), unit, goal))

    def estimate(
        self, name: str, found: IntervalEstimate, unit: str, why_not: str, goal: float | None = None
    ) -> None:
        self.add(name, found.value, unit, why_not, goal)
        if not isnan(found.value):
            self.add(f"{name}_low", found.low, f"{unit}, 95 % interval by run", "one run alone")
            self.add(f"{name}_high", found.high, f"{unit}, 95 % interval by run", "one run alone")


def results_of(found: Evaluation) -> Results:
    out = _Lines()
    _causes(out, found)
    _gpu(out, found)
    _times(out, found)
    _alarms(out, found)
    return Results(tuple(out.lines), tables_of(found), out.absent)


def _causes(out: _Lines, found: Evaluation) -> None:
    judged, rhythm = host_part(found.held_out), host_part(found.rhythm)
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
    there = {run.faults[0].cause for run in found.facts if run.kind is RunKind.FAULT}
    missing = [cause.value for cause in HOST_CAUSES if cause not in there]
    if missing:
        out.absent["classes"] = f"not recorded: {', '.join(missing)}"


def _gpu(out: _Lines, found: Evaluation) -> None:
    runs = [run for run in found.held_out if gpu_run(run)]
    faults: list[Pair] = [
        (outcome.episode.causes[0], outcome.answer)
        for run in runs
        for outcome in single([run], gated=False)
        if outcome.episode.causes[0] in GPU_CAUSES
    ]
    unit = f"F1 over {len(class_rows(faults, GPU_CAUSES))} GPU causes"
    out.add("gpu_fault_f1", macro_f1(faults, GPU_CAUSES), unit, "no GPU fault is recorded")


def _times(out: _Lines, found: Evaluation) -> None:
    outcomes = single(host_part(found.held_out))
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


def _alarms(out: _Lines, found: Evaluation) -> None:
    why = "no held-out run without a fault is recorded"
    spikes = alarm_rate(found.held_out)
    heavy = alarm_rate(found.held_out, incidents=True)
    day, week = HOURS_A_DAY, HOURS_A_WEEK
    out.add("false_alarms_per_host_day", spikes.per(day), "alarms a host-day", why, 0.0)
    out.add("false_alarms_per_host_day_upper", spikes.upper(day), "95 % one-sided bound", why)
    out.add("false_alarm_worker_hours", spikes.worker_hours or np.nan, "hours", why, 12.0)
    out.add("false_alarms", spikes.alarms if spikes.worker_hours else np.nan, "alarms", why, 0.0)
    stolen = sum(alarm.stolen for run in found.held_out if run.calm for alarm in run.alarms)
    counted = stolen if spikes.worker_hours else np.nan
    out.add("false_alarms_while_stolen", counted, "alarms as the hypervisor took CPU time", why)
    unit = "incidents a host-week"
    out.add("false_incidents_per_host_week", heavy.per(week), unit, why, 0.0)
    out.add("false_incidents_per_host_week_upper", heavy.upper(week), "95 % one-sided bound", why)
    everything = alarm_rate(found.all_runs)
    out.add("false_alarms_all_runs", everything.alarms, "alarms, training runs included", why)
    out.add("false_alarm_worker_hours_all_runs", everything.worker_hours or np.nan, "hours", why)


Row = dict[str, Any]


def tables_of(found: Evaluation) -> dict[str, Any]:
    judged = host_part(found.held_out)
    gated = all_pairs(judged)
    anywhere = all_pairs(judged, quiet=True)
    calm = [run for run in found.held_out if run.calm]
    became = [(outcome.episode.causes[0], outcome.incident) for outcome in single(judged)]
    false = [(None, alarm.incident) for run in judged for alarm in run.alarms if alarm.incident]
    return {
        "shipped": "hand rules",
        "split": {
            "seed": found.divided.seed,
            "train": list(found.divided.train),
            "held_out": {k: sorted(why) for k, why in sorted(found.divided.held_out.items())},
        },
        "seeds": {run.name: run.seed for run in found.facts},
        "runs": {str(kind): sum(run.kind is kind for run in found.facts) for kind in RunKind},
        "classes": [class_document(row) for row in class_rows(gated)],
        "classes_rhythm_only": [
            class_document(row) for row in class_rows(all_pairs(host_part(found.rhythm)))
        ],
        "confusion": {
            "causes": [str(cause) for cause in Cause],
            "columns": [*(str(cause) for cause in Cause), "nothing"],
            "diagnoses": confusion(anywhere),
            "incidents": confusion([*became, *false]),
        },
        "held_out_by": [_rule_row(found, why) for why in Why],
        "overlaps": _overlaps(judged),
        "alarms_by_negative": _by_negative(found),
        "calm": {"runs": len(calm), "silent": sum(not run.alarms for run in calm)},
        "by": breakdowns(found.facts, judged),
        "misses": _misses(found, judged),
    }


def class_document(row: ClassRow) -> Row:
    return {
        "cause": str(row.cause),
        "faults": row.trials,
        "precision": known(row.precision),
        "precision_interval": [known(end) for end in row.precision_interval],
        "recall": known(row.recall),
        "recall_interval": [known(end) for end in row.recall_interval],
        "f1": known(row.f1),
    }


def _rule_row(found: Evaluation, why: Why) -> Row:
    runs = [run for run in found.held_out if why in found.divided.held_out[run.run]]
    judged = host_part(runs)
    outcomes = single(judged)
    return {
        "held_out_by": str(why),
        "runs": len(judged),
        "faults_with_impact": len(outcomes),
        "right": sum(outcome.right for outcome in outcomes),
        "accuracy": known(accuracy_of(judged).value) if outcomes else None,
    }


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


def _by_negative(found: Evaluation) -> list[Row]:
    kind = {run.name: run.negative or str(run.kind) for run in found.facts}
    names = sorted({kind[run.run] for run in found.all_runs if run.calm})
    rows = []
    for name in names:
        runs = [run for run in found.all_runs if run.calm and kind[run.run] == name]
        rows.append({
            "what": name,
            "worker_hours": known(sum(run.worker_hours for run in runs)),
            "alarms": sum(len(run.alarms) for run in runs),
            "incidents": sum(alarm.incident is not None for run in runs for alarm in run.alarms),
            "stolen": sum(alarm.stolen for run in runs for alarm in run.alarms),
        })  # fmt: skip
    return rows


def _misses(found: Evaluation, judged: Sequence[Judged]) -> list[Row]:
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


def breakdowns(facts: Iterable[Facts], judged: Sequence[Judged]) -> dict[str, list[Row]]:
    """Divide judged runs of single faults three ways; in each, every run is in one part."""
    known = {run.name: run for run in facts if run.kind is RunKind.FAULT}
    runs = [run for run in judged if run.run in known]
    keys: dict[str, Callable[[Facts], tuple[str, str]]] = {
        "intensity": lambda run: ("", run.intensity or "not said"),
        "workload": lambda run: ("", run.workload),
        "injector": lambda run: (str(run.faults[0].cause), run.injectors[0]),
    }
    tables = {}
    for by, key in keys.items():
        parts: dict[tuple[str, str], list[Judged]] = {}
        for run in runs:
            parts.setdefault(key(known[run.run]), []).append(run)
        tables[by] = [_row(by, *part, parts[part]) for part in sorted(parts, key=_place)]
    return tables


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


RATES_FORMAT: Final = 1
CAUSES: Final = tuple(Cause)
RATES_SECTION: Final = "incidents"
_NUMBERS: Final = re.compile(r"\[\s+((?:[\d.]+,?\s+)+)\]")


def incident_rates(judged: Iterable[Judged], about: str) -> dict[str, Any]:
    """Count which incidents held-out faults became, and those that came without a fault.

    The aggregator reads these counts, of runs of one fault each, and computes rates itself.
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
        "model": RULES_TITLE,
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
    text = _NUMBERS.sub(
        lambda found: f"[{', '.join(found[1].replace(',', ' ').split())}]",
        json.dumps(rates, indent=1),
    )
    path.write_text(text + "\n", encoding="utf-8")
