"""The clock of everything that is measured, CLOCK_BOOTTIME, and its place on the wall clock."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TRIES: Final = 5

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockPoint:
    """At boottime_ns the wall clock read unix_ns, give or take error_ns."""

    boottime_ns: int
    unix_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        return self.unix_ns - self.boottime_ns


def read_point(
    boottime_ns: Callable[[], int] = boottime_ns, unix_ns: Callable[[], int] = time.time_ns
) -> ClockPoint:
    """Read the wall clock between two reads of the boot clock; the closest of five tries."""
    points = []
    for _ in range(_TRIES):
        before_ns = boottime_ns()
        wall_ns = unix_ns()
        after_ns = boottime_ns()
        middle_ns = (before_ns + after_ns) // 2
        points.append(ClockPoint(middle_ns, wall_ns, -(-(after_ns - before_ns) // 2)))
    return min(points, key=lambda point: point.error_ns)


def boot_id(path: Path = BOOT_ID) -> str:
    """Give the id of this boot: boot times of two boots must never be mixed."""
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return "unknown"


class ClockMap:
    """Maps times of one boot by the points kept for it.

    Between two points the wall clock may have been slewed or stepped at any moment, so the error
    is the points' own and half the difference of their offsets; outside the points it grows by
    `DRIFT_PPM`, the most by which the kernel slews a clock.
    """

    DRIFT_PPM: Final = 500

    def __init__(self, points: Sequence[ClockPoint]) -> None:
        """Take the points of one boot. Raises ValueError when there is none."""
        if not points:
            raise ValueError("expected at least one point of the clock, got none")
        self._points = sorted(points, key=lambda point: point.boottime_ns)
        self._times = [point.boottime_ns for point in self._points]

    def unix_ns(self, boottime_ns: int) -> tuple[int, int]:
        place = bisect.bisect_right(self._times, boottime_ns)
        if place in {0, len(self._points)}:
            point = self._points[0 if place == 0 else -1]
            far_ns = abs(boottime_ns - point.boottime_ns)
            error_ns = point.error_ns + far_ns * self.DRIFT_PPM // 1_000_000
            return boottime_ns + point.offset_ns, error_ns
        before, after = self._points[place - 1], self._points[place]
        apart_ns = after.offset_ns - before.offset_ns
        error_ns = max(before.error_ns, after.error_ns) + -(-abs(apart_ns) // 2)
        return boottime_ns + before.offset_ns + apart_ns // 2, error_ns

    def boottime_range(self, since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
        """Give boot times that enclose a span of Unix time, the error included."""
        offsets = [point.offset_ns for point in self._points]
        slack = max(point.error_ns for point in self._points)
        low = -(1 << 62) if since_ns is None else since_ns - max(offsets) - slack
        high = 1 << 62 if until_ns is None else until_ns - min(offsets) + slack
        return low, high
