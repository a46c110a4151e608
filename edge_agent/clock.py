"""The clocks of a live agent, as a port, so that tests can step them."""

from __future__ import annotations

import time
from typing import Protocol

from collectors.boot_clock import ClockPoint, boottime_ns, read_point
from transport.process.supervision import SteadyOffset

from .windows.window_accumulator import HostClock


class Clock(Protocol):
    def unix_ms(self) -> int: ...

    def boottime_ns(self) -> int: ...

    def sleep_ms(self, span_ms: int) -> None:
        """Sleep; a signal may end it early."""
        ...


class SystemClock:
    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boottime_ns(self) -> int:
        return boottime_ns()

    def sleep_ms(self, span_ms: int) -> None:
        time.sleep(span_ms / 1000)


class SteadyClock:
    """A wall clock whose steps are believed once they have stood (`SteadyOffset`)."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self._steady = SteadyOffset(inner.unix_ms(), self._boot_ms())

    def unix_ms(self) -> int:
        return self._steady.believed_ms(self._inner.unix_ms(), self._boot_ms())

    def boottime_ns(self) -> int:
        return self._inner.boottime_ns()

    def sleep_ms(self, span_ms: int) -> None:
        self._inner.sleep_ms(span_ms)

    def _boot_ms(self) -> int:
        return self._inner.boottime_ns() // 1_000_000


def point_of(clock: Clock) -> ClockPoint:
    return read_point(clock.boottime_ns, lambda: clock.unix_ms() * 1_000_000)


def host_clock_of(clock: Clock) -> HostClock:
    return HostClock(point_of(clock).offset_ns)
