"""The clock of everything that is measured, CLOCK_BOOTTIME, and its place on the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_TRIES: Final = 5


def boottime_ns() -> int:
    """Read CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockPoint:
    """At boottime_ns the wall clock read unix_ns, give or take error_ns."""

    boottime_ns: int
    unix_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        """Unix time less CLOCK_BOOTTIME."""
        return self.unix_ns - self.boottime_ns


def read_point(
    boottime_ns: Callable[[], int] = boottime_ns, unix_ns: Callable[[], int] = time.time_ns
) -> ClockPoint:
    """Read the wall clock between two reads of the boot clock; the closest of five tries.

    The wall clock was read somewhere between the two: half their distance is the error.
    """
    points = []
    for _ in range(_TRIES):
        before_ns = boottime_ns()
        wall_ns = unix_ns()
        after_ns = boottime_ns()
        middle_ns = (before_ns + after_ns) // 2
        points.append(ClockPoint(middle_ns, wall_ns, -(-(after_ns - before_ns) // 2)))
    return min(points, key=lambda point: point.error_ns)
