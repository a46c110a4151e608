"""Sums of a chain's releases over an hour, a day and a week, held to what hosts can have as well.

Noise grows by the root of the number of windows and a lie by their number: what hides in one window
shows when it goes on. Kept in memory: a Leader that restarts begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.released import Capacity, ReleasedWindow
from aggregator.statistics.possible_sums import SumRules
from wire.rejection import ReportRejected

from .leader_windows import Chain

PERIODS_S: Final = (3600, 86_400, 604_800)


@dataclass(frozen=True, slots=True)
class PeriodSum:
    """Windows of one task version that began in one period.

    number      of the period, since 1970
    vector      int64[d], steps
    capacity    None where a window came without
    """

    task_id: bytes
    number: int
    n: int
    vector: NDArray[np.int64]
    capacity: Capacity | None

    @staticmethod
    def of(released: ReleasedWindow, period_s: int) -> PeriodSum:
        """The sum of one window."""
        number = released.window_start_s // period_s
        vector, capacity = released.vector, released.capacity
        return PeriodSum(released.task_id, number, released.n, vector, capacity)

    def __add__(self, other: PeriodSum) -> PeriodSum:
        """The sum of both, or the later where they are of different periods or versions."""
        if (self.task_id, self.number) != (other.task_id, other.number):
            return other
        capacity = None
        if self.capacity is not None and other.capacity is not None:
            capacity = self.capacity + other.capacity
        vector = self.vector + other.vector
        return replace(self, n=self.n + other.n, vector=vector, capacity=capacity)


class PeriodSums:
    """The periods that each chain is in."""

    def __init__(self, rules: SumRules) -> None:
        self._rules = rules
        self._sums: dict[Chain, dict[int, PeriodSum]] = {}

    def add(self, released: ReleasedWindow) -> None:
        """Take a window that is about to be released, unless its periods cannot be with it.

        Then they begin anew, so that a lie that ends does not hold up the windows after it.
        Raises      ReportRejected (impossible_sum)
        """
        task = released.task
        before = self._sums.pop((task.series, released.cohort), {})
        found: dict[int, PeriodSum] = {}
        for period_s in PERIODS_S:
            if period_s > task.window_s:
                window = PeriodSum.of(released, period_s)
                found[period_s] = before[period_s] + window if period_s in before else window
        for period_s, period in found.items():
            try:
                self._rules.of(task, period.n, period.capacity).check(period.vector)
            except ReportRejected as refusal:
                got = f"{refusal.got}, over windows of {period_s} s"
                raise ReportRejected(refusal.reason, refusal.expected, got) from None
        self._sums[task.series, released.cohort] = found
