"""Sums of a chain's releases over an hour, a day and a week, held to what hosts can have as well.

Noise grows by the root of the number of windows and a lie by their number: what hides in one window
shows when it goes on. Kept in memory: a Leader that restarts begins anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aggregator.protocol.released import ReleasedWindow
from aggregator.statistics.possible_sums import SumRules
from wire.rejection import ReportRejected

from .leader_windows import Chain

PERIODS_S: Final = (3600, 86_400, 604_800)


class PeriodSums:
    """The periods that each chain is in."""

    def __init__(self, rules: SumRules) -> None:
        self._rules = rules
        self._sums: dict[Chain, dict[int, ReleasedWindow]] = {}

    def add(self, released: ReleasedWindow) -> None:
        """Take a window that is about to be released, unless its periods cannot be with it.

        Then they begin anew, so that a lie that ends does not hold up the windows after it.
        Raises      ReportRejected (impossible_sum)
        """
        task = released.task
        before = self._sums.pop((task.series, released.cohort), {})
        found = {
            period_s: _with(before.get(period_s), released, period_s)
            for period_s in PERIODS_S
            if period_s > task.window_s
        }
        for period_s, period in found.items():
            try:
                self._rules.of(task, period.n, period.capacity).check(period.vector)
            except ReportRejected as refusal:
                got = f"{refusal.got}, over windows of {period_s} s"
                raise ReportRejected(refusal.reason, refusal.expected, got) from None
        self._sums[task.series, released.cohort] = found


def _with(before: ReleasedWindow | None, window: ReleasedWindow, period_s: int) -> ReleasedWindow:
    """Both as one, or the later where they are of different periods or task versions."""
    if before is None or before.task_id != window.task_id:
        return window
    if before.window_start_s // period_s != window.window_start_s // period_s:
        return window
    capacity = None
    if before.capacity is not None and window.capacity is not None:
        capacity = before.capacity + window.capacity
    vector = before.vector + window.vector
    return replace(window, n=before.n + window.n, vector=vector, capacity=capacity)
