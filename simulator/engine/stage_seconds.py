"""CPU seconds by stage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping


class Laps:
    """Charges the time between two laps to a stage.

    A lap reads the wall clock, which costs 40 ns; at `stop` the laps since `start` are scaled to
    the CPU time that the process used in them, so that neighbours on the machine do not count.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._wall: Counter[str] = Counter()  # nanoseconds
        self._mark = self._cpu = 0
        self.stages: dict[str, float] = {}

    def __call__(self, stage: str) -> None:
        """Charge the time since the last lap."""
        now = time.perf_counter_ns()
        self._wall[stage] += now - self._mark
        self._mark = now

    def start(self) -> None:
        """Begin to count."""
        self._wall.clear()
        self._cpu = time.process_time_ns()
        self._mark = time.perf_counter_ns()

    def stop(self) -> None:
        """Charge what is left to "rest", and scale everything since `start`."""
        self("rest")
        scale = (time.process_time_ns() - self._cpu) / max(1, self._wall.total())
        for stage, wall in self._wall.items():
            name = self._prefix + stage
            self.stages[name] = self.stages.get(name, 0.0) + wall * scale / 1e9

    def __enter__(self) -> Laps:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self) -> dict[str, float]:
        """Give the seconds so far, and begin at zero."""
        taken, self.stages = self.stages, {}
        return taken


def merged(parts: list[Mapping[str, float]]) -> dict[str, float]:
    """Add stages of several processes."""
    total: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
