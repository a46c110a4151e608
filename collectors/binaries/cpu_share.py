"""A share of one CPU over time: a flood of work makes a thread late, not the host."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.1
BURST_S: Final = 2.0
"""Of CPU time that may be spent at once: a hundred programs that start together take half of it."""


class CpuShare:
    """What a thread may still spend; earned as time passes, up to the burst."""

    def __init__(self, now_s: float, cpu_s: float) -> None:
        """Begin with a full burst at a monotonic time and the thread's CPU time, both in s."""
        self._now_s, self._cpu_s = now_s, cpu_s
        self._credit_s = BURST_S

    def pause_s(self, now_s: float, cpu_s: float) -> float:
        """Give how long to do nothing now, so that the share holds."""
        earned = max(0.0, now_s - self._now_s) * SHARE
        spent = max(0.0, cpu_s - self._cpu_s)
        self._now_s, self._cpu_s = now_s, cpu_s
        self._credit_s = min(BURST_S, self._credit_s + earned) - spent
        return max(0.0, -self._credit_s / SHARE)
