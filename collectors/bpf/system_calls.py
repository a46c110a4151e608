"""bpf(2) and perf_event_open(2), which no library of ours wraps."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from collectors.interface import SourceUnavailable

VMLINUX: Final = Path("/sys/kernel/btf/vmlinux")


NUMBERS: Final = {
    "x86_64": {"bpf": 321, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "perf_event_open": 241},
}

# syscall(2) hands on whole words; each call's arguments are as wide as the kernel reads them.
BPF: Final = (ctypes.c_long, (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint))
PERF_EVENT_OPEN: Final = (
    ctypes.c_long,
    (ctypes.c_long, ctypes.c_void_p, *(ctypes.c_long,) * 3, ctypes.c_ulong),
)

CLOSE_ON_EXEC: Final = 8
_EVERY, _NO_GROUP = -1, -1


def structure_fields(text: str) -> tuple[tuple[str, Any], ...]:
    """Lay out a structure of the kernel: its names in order, each of 64 bits or as `name:32`."""
    pairs = (name.partition(":")[::2] for name in text.split())
    return tuple((name, getattr(ctypes, f"c_uint{bits or 64}")) for name, bits in pairs)


class PerfEventAttributes(ctypes.Structure):
    """struct perf_event_attr up to the clock; what is left out is 0."""

    _fields_ = structure_fields(
        "type:32 size:32 config sample_period sample_type read_format flags wakeup:32 bp_type:32 "
        "config1 config2 branch_sample_type sample_regs_user sample_stack_user:32 clockid:32"
    )


def bpf(command: int, attributes: ctypes.Structure) -> int:
    """Do bpf(2); what the kernel gives, or an errno below 0. Raises SourceUnavailable."""
    call, number = _system_call("bpf")
    done = call(number, command, ctypes.addressof(attributes), ctypes.sizeof(attributes))
    return done if done >= 0 else -ctypes.get_errno()


def open_event(attributes: PerfEventAttributes, cpu: int) -> int:
    """Open an event of every process on one CPU. Raises SourceUnavailable, OSError."""
    call, number = _system_call("perf_event_open")
    attributes.size = ctypes.sizeof(attributes)
    place = ctypes.addressof(attributes)
    fd = call(number, place, _EVERY, cpu, _NO_GROUP, CLOSE_ON_EXEC)
    if fd < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return fd


@cache
def _system_call(name: str) -> tuple[Callable[..., int], int]:
    numbers = NUMBERS.get(platform.machine())
    if numbers is None:
        raise SourceUnavailable(f"expected x86_64 or aarch64, this is {platform.machine()}")
    # Not the attribute of that name: each of the two has arguments of its own.
    call: Any = ctypes.CDLL(None, use_errno=True)["syscall"]
    call.restype, call.argtypes = BPF if name == "bpf" else PERF_EVENT_OPEN
    return call, numbers[name]


_FENCE: Final = threading.Lock()


def barrier() -> None:
    """Keep every read and write before this from those after it, on arm64 too."""
    # A release between an earlier and a later taking of one lock is a full barrier.
    for _ in range(2):
        with _FENCE:
            pass
