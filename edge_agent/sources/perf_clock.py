"""One perf event per CPU on the kernel's own clock: the tick of kernels without BPF timers."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path
from typing import Final

from .port import SourceUnavailable

_SYSCALLS: Final = {"x86_64": 298, "aarch64": 241}
_ONLINE: Final = Path("/sys/devices/system/cpu/online")
_SOFTWARE, _CPU_CLOCK = 1, 0
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQ")
"""struct perf_event_attr as it first was: type, size, config, period, then what stays 0."""
_CLOSE_ON_EXEC: Final = 8


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
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise SourceUnavailable(f"expected x86_64 or aarch64, this is {platform.machine()}")
    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(_SOFTWARE, size, _CPU_CLOCK, period_ns, 0, 0, 0, 0, 0, 0)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    every_task, no_group = ctypes.c_long(-1), ctypes.c_long(-1)
    descriptor = syscall(
        ctypes.c_long(number), attributes, every_task, ctypes.c_long(cpu), no_group,
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    if descriptor < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return int(descriptor)
