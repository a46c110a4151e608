"""A wall clock held against the boot clock: what it steps by is believed once it has stood."""

from __future__ import annotations

import time
from typing import Final

STEP_MS: Final = 60_000
"""A wall clock that moves further against the boot clock was stepped; less is discipline."""

BELIEVED_AFTER_MS: Final = 600_000
"""NTP mends a glitch within a few polls of 64 s; whoever sets a clock on purpose leaves it so."""


class SteadyOffset:
    """Unix time whose steps are believed once they have stood for ten minutes of boot time.

    Until then it goes on by the boot clock: a glitch that is mended sooner is never seen. What is
    read first is believed at once.
    """

    def __init__(self, unix_ms: int, boot_ms: int) -> None:
        self._offset_ms = unix_ms - boot_ms
        self._step: tuple[int, int] | None = None
        """When a step was first seen, by the boot clock, and the offset that it made."""

    def believed_ms(self, unix_ms: int, boot_ms: int) -> int:
        """Take a reading of both clocks; give the Unix time that is believed."""
        offset_ms = unix_ms - boot_ms
        if abs(offset_ms - self._offset_ms) <= STEP_MS:
            self._offset_ms, self._step = offset_ms, None
        elif self._step is None or abs(offset_ms - self._step[1]) > STEP_MS:
            self._step = boot_ms, offset_ms
        elif boot_ms - self._step[0] >= BELIEVED_AFTER_MS:
            self._offset_ms, self._step = offset_ms, None
        return boot_ms + self._offset_ms


def boot_s() -> float:
    """Seconds since the machine started, suspended ones too; nobody sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
