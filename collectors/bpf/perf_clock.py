"""One perf event per CPU on the kernel's own clock: the tick of kernels without BPF timers."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from collectors.port import SourceUnavailable

from .system_calls import SOFTWARE, PerfEventAttributes, perf_event_open

_ONLINE: Final = Path("/sys/devices/system/cpu/online")
CPU_CLOCK: Final = 0
"""PERF_COUNT_SW_CPU_CLOCK"""


def cpu_numbers(text: str) -> list[int]:
    """Read the kernel's list of CPUs, as `0-3,8`."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [cpu for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1)]


def open_cpu_clocks(period_ns: int) -> list[int]:
    """Open an event on every CPU that is online; give their descriptors, the caller's to close.

    Raises      SourceUnavailable
    """
    opened: list[int] = []
    try:
        for cpu in cpu_numbers(_ONLINE.read_text(encoding="ascii")):
            opened.append(_open(cpu, period_ns))  # noqa: PERF401 - closed when a later one fails
    except OSError as error:
        for descriptor in opened:
            os.close(descriptor)
        wanted = ": expected CAP_PERFMON" if error.errno in {errno.EACCES, errno.EPERM} else ""
        raise SourceUnavailable(f"cannot open a perf event: {error.strerror}{wanted}") from None
    return opened


def _open(cpu: int, period_ns: int) -> int:
    clock = PerfEventAttributes(type=SOFTWARE, config=CPU_CLOCK, sample_period=period_ns)
    return perf_event_open(clock, cpu)
