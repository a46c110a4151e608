"""How much of a process's time is recorded, so that recording costs no more than the budget.

Two things cost the process time: each record, and each window, in which CUPTI comes and leaves:
attached it slows launches also while it records nothing. A process with few launches is recorded
all the time; any other in windows, a third of whose budget goes to records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .listener import WindowPlan
from .segment import Snapshot

RECORD_NS: Final = 1_200
"""What a record costs the process. Measured on an H100 with CUDA 13.0: 0.9 to 1.15 us a launch, 0.6
us a kernel of a graph."""
WINDOW_MS: Final = 15
"""What a window costs beside its records: 7 ms to attach, 2 ms to leave, and 30 ms in which nothing
more came, at a quarter of their time. Measured on the same machine."""
FIRST: Final = WindowPlan(20, 1_000, 5_000)
"""Asked of a process of which nothing is known."""
LEAST_ON_MS: Final = 10
_MOST_PERIOD_MS: Final = 60_000
LEAST_SHARE: Final = 1.5 * WINDOW_MS / _MOST_PERIOD_MS
"""Below, one window in the longest period costs more."""
_MEMORY: Final = 0.9
"""How much of the busiest rate seen is kept from one look to the next. A window that a burst ends
early misses the rest of it: where quiet times were soon forgotten, work in bursts was told 6 % too
small, by this 1 %."""


@dataclass(slots=True)
class Budget:
    """Follows one process.

    share  of its time that recording may cost, from LEAST_SHARE on
    """

    share: float
    busiest: float = 0.0
    """Records a second while recording: the highest of late."""
    _before: tuple[int, int] = (0, 0)

    def follow(self, snapshot: Snapshot) -> WindowPlan:
        """Look at its newest state and say what to ask of it."""
        now = snapshot.header["records"], snapshot.header["on_ns"]
        records, on_ns = now[0] - self._before[0], now[1] - self._before[1]
        if on_ns > 0:
            self.busiest = max(1e9 * records / on_ns, _MEMORY * self.busiest)
            self._before = now
        return self.plan()

    def plan(self) -> WindowPlan:
        """Give the longest windows that the budget allows.

        A burst ends one early: with what attaching costs, its records cost no more than the budget.
        """
        if not self._before[1]:
            return FIRST
        period_ms = min(max(round(1.5 * WINDOW_MS / self.share), 1_000), _MOST_PERIOD_MS)
        cost = self.busiest * RECORD_NS / 1e9
        if cost <= self.share / 5:
            on_ms = period_ms
        else:
            on_ms = max(LEAST_ON_MS, min(round(0.5 * WINDOW_MS / cost), period_ms // 2))
        most = max(1, int((self.share * period_ms - WINDOW_MS) * 1e6 / RECORD_NS))
        return WindowPlan(on_ms, period_ms, most)
