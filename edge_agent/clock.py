"""The clocks of a live agent, as a port, so that tests can step them."""

from __future__ import annotations

import time
from typing import Final, Protocol

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


STEP_MS: Final = 60_000
"""A wall clock that moves further against the boot clock was stepped; less is discipline."""

BELIEVED_AFTER_MS: Final = 600_000
"""NTP mends a glitch within a few polls of 64 s; whoever sets a clock on purpose leaves it so."""


class SteadyClock:
    """A wall clock whose steps are believed once they have stood for ten minutes of boot time.

    Until then it goes on by the boot clock: a glitch that is mended sooner is never seen. What a
    clock says when it is first read is believed at once.
    """

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self._offset_ms = inner.unix_ms() - self._boot_ms()
        self._step: tuple[int, int] | None = None
        """When a step was first seen, by the boot clock, and the offset that it made."""

    def unix_ms(self) -> int:
        boot_ms = self._boot_ms()
        offset_ms = self._inner.unix_ms() - boot_ms
        if abs(offset_ms - self._offset_ms) <= STEP_MS:
            self._offset_ms, self._step = offset_ms, None
        elif self._step is None or abs(offset_ms - self._step[1]) > STEP_MS:
            self._step = boot_ms, offset_ms
        elif boot_ms - self._step[0] >= BELIEVED_AFTER_MS:
            self._offset_ms, self._step = offset_ms, None
        return boot_ms + self._offset_ms

    def boottime_ns(self) -> int:
        return self._inner.boottime_ns()

    def sleep_ms(self, span_ms: int) -> None:
        self._inner.sleep_ms(span_ms)

    def _boot_ms(self) -> int:
        return self._inner.boottime_ns() // 1_000_000


def point_of(clock: Clock) -> ClockPoint:
    """Read the boot clock and the wall clock together."""
    return read_point(clock.boottime_ns, lambda: clock.unix_ms() * 1_000_000)


def host_clock_of(clock: Clock) -> HostClock:
    """Map the boot clock to the wall clock as they stand now."""
    return HostClock(point_of(clock).offset_ns)
