"""Intervals of figures: bootstrap by run, Poisson bounds, areas under curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata

SEED: Final = 20_261_121
RESAMPLES = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap(
    groups: Sequence[Sequence[T]],
    figure: Callable[[Sequence[T]], float],
    resamples: int | None = None,
    seed: int = SEED,
) -> IntervalEstimate:
    """Resample whole runs, so that seconds and subjects of one run stay together.

    groups      what each run gave
    figure      of all of it; a resample whose figure is NaN is left out
    resamples   None: RESAMPLES
    """
    value = figure([one for group in groups for one in group])
    if not groups:
        return IntervalEstimate(value, float("nan"), float("nan"))
    size = (RESAMPLES if resamples is None else resamples, len(groups))
    drawn = np.random.default_rng(seed).integers(len(groups), size=size)
    values = np.array([figure([one for k in row for one in groups[k]]) for row in drawn])
    told = values[~np.isnan(values)]
    if told.size == 0:
        return IntervalEstimate(value, float("nan"), float("nan"))
    low, high = np.percentile(told, [2.5, 97.5])
    return IntervalEstimate(value, float(low), float(high))


def poisson_upper(events: int, confidence: float = 0.95) -> float:
    """Largest mean that `events` do not yet speak against, one-sided (Garwood 1936)."""
    return float(chi2.ppf(confidence, 2 * (events + 1))) / 2


def auroc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Chance that a positive scores above a negative, ties half; NaN where one side is empty.

    Raises   ValueError for a score that is NaN: it has no rank, and whoever has none is left out
             before, as of faults that were not detected
    """
    unranked = int(np.isnan(positive).sum() + np.isnan(negative).sum())
    if unranked:
        raise ValueError(f"expected scores that are numbers, got {unranked} that are NaN")
    if positive.size == 0 or negative.size == 0:
        return float("nan")
    ranks = rankdata(np.concatenate([positive, negative]))
    least = positive.size * (positive.size + 1) / 2
    return float((ranks[: positive.size].sum() - least) / (positive.size * negative.size))


def percentile(values: Sequence[float], q: float) -> float:
    """Return a percentile; NaN of nothing."""
    return float(np.percentile(values, q)) if len(values) else float("nan")
