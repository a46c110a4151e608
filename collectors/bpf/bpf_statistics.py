"""The kernel's own account of BPF programs, where root switched kernel.bpf_stats_enabled on."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from collectors.port import SourceUnavailable
from collectors.records.activity import HostTable

from .bpf_maps import bpf_call

SWITCH: Final = Path("/proc/sys/kernel/bpf_stats_enabled")
COLUMNS: Final = ("runs", "run_ns")
INFO_BY_FD: Final = 15
_INFO_BYTES: Final = 208
RUN_TIME_AT: Final = 192
"""Offset in struct bpf_prog_info of run_time_ns; run_cnt follows. Linux 5.1."""

Runs = dict[str, tuple[int, int]]


class InfoByFd(ctypes.Structure):
    """bpf_attr of BPF_OBJ_GET_INFO_BY_FD."""

    _fields_ = (
        ("bpf_fd", ctypes.c_uint32),
        ("info_len", ctypes.c_uint32),
        ("info", ctypes.c_uint64),
    )


def program_runs(fd: int) -> tuple[int, int]:
    """Give how often a program ran and for how many ns, while statistics were on.

    Raises      SourceUnavailable
    """
    run_ns, runs = struct.unpack_from("=QQ", object_info(fd), RUN_TIME_AT)
    return runs, run_ns


def object_info(fd: int) -> bytes:
    """Give struct bpf_prog_info or bpf_map_info of a descriptor. Raises SourceUnavailable."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    failed = bpf_call(INFO_BY_FD, InfoByFd(fd, _INFO_BYTES, ctypes.addressof(info)))
    if failed:
        raise SourceUnavailable(f"cannot ask about a BPF object: {os.strerror(failed)}")
    return info.raw


class BpfStatistics:
    """What the kernel counted since the last call; nothing while its statistics are off.

    fds     descriptor of each program
    """

    def __init__(self, fds: Mapping[str, int], switch: Path = SWITCH) -> None:
        self._fds = dict(fds)
        self._switch = switch
        self._before: Runs | None = None

    def grown(self, boottime_ns: int, span_ns: int) -> HostTable | None:
        """Give runs and their time by program; the first call after the switch sets the base."""
        now = self._read() if self._enabled() else None
        before, self._before = self._before, now
        if now is None or before is None or not now:
            return None
        values = [np.subtract(now[name], before[name]) for name in now]
        table = np.array(values, np.int64)
        return HostTable("bpf_statistics", tuple(now), COLUMNS, table, boottime_ns, span_ns)

    def _enabled(self) -> bool:
        try:
            descriptor = os.open(self._switch, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.read(descriptor, 16).strip() == b"1"
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _read(self) -> Runs:
        return {name: program_runs(fd) for name, fd in self._fds.items()}
