"""Estimates of GPU time beside the truth: sums over windows, and how often their intervals hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from bench.record import Figure
from collectors.records.estimated_time import EstimatedTime, summed

SPANS: Final = (1, 3, 12, 48)
"""Windows that an estimate is summed over: 5 s to 4 minutes at the default budget."""


class Told(NamedTuple):
    """What was told of one span, by kernel and of all: the estimate and the true ns of each."""

    estimates: Sequence[EstimatedTime]
    truth: Sequence[float]


class Outcome(NamedTuple):
    """One sum over windows. `error_ns` is None where no interval is stated."""

    windows: int
    value_ns: float
    error_ns: float | None
    truth_ns: float

    @property
    def holds(self) -> bool:
        """Tell whether the interval has the truth in it, but for a microsecond of rounding."""
        return self.error_ns is not None and (
            abs(self.value_ns - self.truth_ns) <= self.error_ns + 1_000
        )


def outcomes(told: Sequence[Told], spans: Iterable[int] = SPANS) -> Iterator[Outcome]:
    """Sum over so many windows after each other, and compare."""
    for windows in spans:
        for first in range(0, len(told) - windows + 1, windows):
            parts = told[first : first + windows]
            for at in range(len(parts[0].truth)):
                estimate = summed(part.estimates[at] for part in parts)
                truth_ns = sum(part.truth[at] for part in parts)
                yield Outcome(windows, estimate.value_ns, estimate.error_ns, truth_ns)


def coverage_percent(found: Iterable[Outcome]) -> float:
    """Give how many of the intervals that were stated hold the truth."""
    stated = [outcome.holds for outcome in found if outcome.error_ns is not None]
    return 100 * float(np.mean(stated))


def bias_percent(found: Sequence[Outcome]) -> float:
    """Give how far sums over all windows are off on average."""
    singles = [outcome for outcome in found if outcome.windows == 1]
    values, truth = (np.array([o[at] for o in singles]) for at in (1, 3))
    return 100 * float(values.sum() / truth.sum() - 1)


def stated_figures(name: str, found: Sequence[Outcome]) -> list[Figure]:
    """Give how many intervals there were, and where there were none."""
    stated = [outcome for outcome in found if outcome.error_ns is not None]
    without = 100 * (1 - len(stated) / len(found))
    return [
        Figure(f"{name}_intervals", len(stated), "intervals"),
        Figure(f"{name}_without_interval_percent", without, "% of sums"),
    ]
