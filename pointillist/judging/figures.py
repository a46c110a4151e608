"""Figures of a diagnosis from judged runs, each with its interval, and what the design asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from scipy.stats import chi2

from diagnosis.detect.findings import Cause
from kernels.signature_learning import wilson_interval

from .outcomes import Judged, Outcome
from .splits import SEED

MACRO_F1_GOAL: Final = 0.92
DETECT_GOAL_S: Final = 3.0
CAUSE_GOAL_S: Final = 5.0


RESAMPLES = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    value: float
    low: float
    high: float


def bootstrap(
    groups: Sequence[Sequence[T]],
    figure: Callable[[Sequence[T]], float],
    resamples: int | None = None,
) -> IntervalEstimate:
    """Resample whole runs (`groups`); a resample whose figure is NaN is left out."""
    value = figure([item for group in groups for item in group])
    if not groups:
        return IntervalEstimate(value, float("nan"), float("nan"))
    size = (RESAMPLES if resamples is None else resamples, len(groups))
    drawn = np.random.default_rng(SEED).integers(len(groups), size=size)
    values = np.array([figure([item for k in row for item in groups[k]]) for row in drawn])
    told = values[~np.isnan(values)]
    if told.size == 0:
        return IntervalEstimate(value, float("nan"), float("nan"))
    low, high = np.percentile(told, [2.5, 97.5])
    return IntervalEstimate(value, float(low), float(high))


def poisson_upper(events: int, confidence: float = 0.95) -> float:
    """Largest mean that `events` do not yet speak against, one-sided (Garwood 1936)."""
    return float(chi2.ppf(confidence, 2 * (events + 1))) / 2


GPU_CAUSES: Final = (
    Cause.GPU_THERMAL_OR_POWER_LIMIT,
    Cause.GPU_HARDWARE_FAULT,
    Cause.GPU_SHARED,
    Cause.PCIE_PRESSURE,
)
HOST_CAUSES: Final = tuple(cause for cause in Cause if cause not in GPU_CAUSES)
"""What a machine without a GPU can be struck by, and `unknown`."""
HOURS_A_DAY: Final = 24.0
HOURS_A_WEEK: Final = 168.0

Pair = tuple[Cause | None, Cause | None]
"""Truth and answer; truth None: no fault was there, answer None: nothing was said."""


@dataclass(frozen=True, slots=True)
class ClassRow:
    """Precision and recall of one cause, Wilson intervals; NaN precision where never answered."""

    cause: Cause
    trials: int
    precision: float
    precision_interval: tuple[float, float]
    recall: float
    recall_interval: tuple[float, float]
    f1: float


@dataclass(frozen=True, slots=True)
class AlarmRate:
    """Alarms where there was no fault, and the rate that the hours allow."""

    alarms: int
    worker_hours: float

    def per(self, hours: float) -> float:
        return hours * self.alarms / self.worker_hours if self.worker_hours else float("nan")

    def upper(self, hours: float) -> float:
        """Largest rate that the hours do not yet exclude, 95 %, one-sided."""
        bound = poisson_upper(self.alarms)
        return hours * bound / self.worker_hours if self.worker_hours else float("nan")


def single(judged: Iterable[Judged], gated: bool = True) -> list[Outcome]:
    """Outcomes of faults that came alone; gated: of those with impact."""
    return [
        outcome
        for run in judged
        for outcome in run.outcomes
        if len(outcome.episode.causes) == 1 and (outcome.episode.impact or not gated)
    ]


def pairs_of(run: Judged, gated: bool = True, quiet: bool = False) -> list[Pair]:
    """Return truth and answer of a run's faults, and a pair without truth for each alarm.

    quiet   take alarms of runs in which nothing was done too: precision would fall with their hours
    """
    faults: list[Pair] = [
        (outcome.episode.causes[0], outcome.answer) for outcome in single([run], gated)
    ]
    return faults + [(None, outcome.cause) for outcome in run.alarms if quiet or not run.quiet]


def seconds_of(run: Judged) -> list[Pair]:
    return [
        (outcome.episode.causes[0], answer)
        for outcome in single([run])
        for answer, count in outcome.by_second.items()
        for _ in range(count)
    ]


def all_pairs(judged: Iterable[Judged], gated: bool = True, quiet: bool = False) -> list[Pair]:
    return [pair for run in judged for pair in pairs_of(run, gated, quiet)]


def class_rows(pairs: Sequence[Pair], causes: Sequence[Cause] = HOST_CAUSES) -> list[ClassRow]:
    rows = []
    for cause in causes:
        hits = sum(truth is cause and answer is cause for truth, answer in pairs)
        trials = sum(truth is cause for truth, _ in pairs)
        answered = sum(answer is cause for _, answer in pairs)
        if trials:
            precision = hits / answered if answered else float("nan")
            rows.append(
                ClassRow(
                    cause, trials, precision, wilson_interval(hits, answered), hits / trials,
                    wilson_interval(hits, trials), 2 * hits / (trials + answered),
                )
            )  # fmt: skip
    return rows


def macro_f1(pairs: Sequence[Pair], causes: Sequence[Cause] = HOST_CAUSES) -> float:
    """Mean F1 over the causes that were ever true; alarms without a fault cost precision."""
    rows = class_rows(pairs, causes)
    return float(np.mean([row.f1 for row in rows])) if rows else float("nan")


def accuracy(pairs: Sequence[Pair]) -> float:
    """Share of faults whose cause was named; misses are wrong."""
    faults = [truth is answer for truth, answer in pairs if truth is not None]
    return float(np.mean(faults)) if faults else float("nan")


def macro_f1_of(judged: Sequence[Judged], gated: bool = True) -> IntervalEstimate:
    return bootstrap([pairs_of(run, gated) for run in judged], macro_f1)


def accuracy_of(judged: Sequence[Judged], gated: bool = True) -> IntervalEstimate:
    return bootstrap([pairs_of(run, gated) for run in judged], accuracy)


def alarm_rate(judged: Iterable[Judged], incidents: bool = False) -> AlarmRate:
    """Count alarms of runs without a fault; incidents: those heavy enough for the weekly count."""
    calm = [run for run in judged if run.calm]
    alarms = [alarm for run in calm for alarm in run.alarms if not incidents or alarm.incident]
    return AlarmRate(len(alarms), sum(run.worker_hours for run in calm))


def delays(outcomes: Iterable[Outcome], q: float, cause: bool = False) -> float:
    """Percentile of the time from impact to detection, or to the right cause, where it came."""
    delays = [outcome.cause_s if cause else outcome.detect_s for outcome in outcomes]
    told = [delay for delay in delays if delay is not None]
    return float(np.percentile(told, q)) if told else float("nan")


def detected_share(outcomes: Sequence[Outcome]) -> float:
    found = [outcome.detect_s is not None for outcome in outcomes]
    return float(np.mean(found)) if found else np.nan


def confusion(pairs: Iterable[Pair], causes: Sequence[Cause] = tuple(Cause)) -> list[list[int]]:
    """Count answers by truth: rows the causes and `no fault`, columns the causes and `nothing`."""
    at: dict[Cause | None, int] = {cause: place for place, cause in enumerate(causes)}
    at[None] = len(causes)
    rows = [[0] * (len(causes) + 1) for _ in range(len(causes) + 1)]
    for truth, answer in pairs:
        rows[at[truth]][at[answer]] += 1
    return rows


def host_part(judged: Iterable[Judged]) -> list[Judged]:
    """Leave out runs of GPU faults: they have figures of their own."""
    return [run for run in judged if not gpu_run(run)]


def gpu_run(run: Judged) -> bool:
    return any(cause in GPU_CAUSES for outcome in run.outcomes for cause in outcome.episode.causes)


def known(value: float) -> float | None:
    """Round a figure for a table; None for NaN, which JSON does not know."""
    return None if np.isnan(value) else round(float(value), 4)
