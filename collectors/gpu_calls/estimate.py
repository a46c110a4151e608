"""How many calls there were, from those that were seen: unbiased, with a variance.

A group that is attached in turns is seen in one random window a period. A period's count over the
probability of every instant estimates the period's calls without bias (D. G. Horvitz and D. J.
Thompson, 1952). One window a period does not show its own spread: that is taken from the
differences of successive periods (K. M. Wolter, Introduction to Variance Estimation, 2nd ed. 2007,
section 8.2, v2), which is too large rather than too small where the rate drifts.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import sqrt
from typing import NamedTuple


class PeriodCount(NamedTuple):
    """Calls of one kind in one governor period.

    calls   that were seen
    share   probability with which each instant was seen, 0 .. 1; 0: nothing was attached
    """

    calls: int
    share: float


class Estimate(NamedTuple):
    """Calls that there were.

    value     expected number
    variance  of it; infinite where nothing was attached in any period
    seen      share of the time that was seen
    """

    value: float
    variance: float
    seen: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval, at least the calls that were seen."""
        half = 1.959964 * sqrt(self.variance)
        return max(self.value - half, 0.0), self.value + half


def corrected(periods: Iterable[PeriodCount]) -> Estimate:
    """Estimate the calls of equally long periods.

    Periods without any attached time are filled with the mean of the others: their number of
    calls is not known to be zero.
    """
    all_periods = list(periods)
    watched = [period for period in all_periods if period.share > 0.0]
    if not watched:
        return Estimate(0.0, float("inf") if all_periods else 0.0, 0.0)
    values = [period.calls / period.share for period in watched]
    mean_share = sum(period.share for period in watched) / len(watched)
    scale = len(all_periods) / len(watched)
    value = sum(values) * scale
    variance = _variance(values, mean_share)
    if scale > 1.0:
        variance = _whole_variance(values, variance) * scale**2
    return Estimate(value, variance, sum(period.share for period in watched) / len(all_periods))


def _variance(values: list[float], share: float) -> float:
    """Variance of the sum of the periods' estimates, each from one window."""
    if share >= 1.0:
        return 0.0
    periods = len(values)
    if periods < 2:
        # All calls in one instant: the largest variance that the count allows.
        return values[0] ** 2 * (1.0 - share)
    squares = sum((b - a) ** 2 for a, b in pairwise(values))
    return (1.0 - share) * periods * squares / (2.0 * (periods - 1))


def _whole_variance(values: list[float], within: float) -> float:
    """Variance where whole periods were not seen: between periods too."""
    periods = len(values)
    if periods < 2:
        return max(within, values[0] ** 2)
    mean = sum(values) / periods
    between = periods * sum((value - mean) ** 2 for value in values) / (periods - 1)
    return max(within, between)
