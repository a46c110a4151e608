"""The clocks of a live agent, as a port, so that tests can step them."""

from __future__ import annotations

import time
from typing import Protocol

from collectors.boot_clock import ClockPoint, boottime_ns, read_point

from .windows.window_accumulator import HostClock


class Clock(Protocol):
    """The host's clocks."""

    def unix_ms(self) -> int:
        """Give milliseconds since 1970."""
        ...

    def boottime_ns(self) -> int:
        """Give CLOCK_BOOTTIME."""
        ...

    def sleep_ms(self, span_ms: int) -> None:
        """Sleep; a signal may end it early."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boottime_ns(self) -> int:
        return boottime_ns()

    def sleep_ms(self, span_ms: int) -> None:
        time.sleep(span_ms / 1000)


def point_of(clock: Clock) -> ClockPoint:
    """Read the boot clock and the wall clock together."""
    return read_point(clock.boottime_ns, lambda: clock.unix_ms() * 1_000_000)


def host_clock_of(clock: Clock) -> HostClock:
    """Map the boot clock to the wall clock as they stand now."""
    return HostClock(point_of(clock).offset_ns)
