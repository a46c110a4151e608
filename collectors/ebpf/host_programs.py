"""Bounds of the BPF programs, and what a loader hands to the eBPF source: maps, what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.bpf.bpf_maps import PerCpuMap
from collectors.port import Absence

from . import ebpf_layout as layout
from .host_ticks import Ticks
from .rhythm_maps import RhythmMaps


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows of the bounded maps; what finds no room is counted, and added to OTHER.

    rhythms             processes, thread_rows threads, of watched cgroups
    timed_hits_log2     one hit in 2 ** this is timed
    absolute_timer      False: set each tick from the last deadline, as before Linux 6.4
    timer               False: tick by a perf event on each CPU, as before Linux 5.19
    """

    cgroups: int = 1024
    block_cgroups: int = 512
    devices: int = 128
    peers: int = 1024
    rhythms: int = 256
    thread_rows: int = 4096
    tick_ns: int = 10_000_000
    timed_hits_log2: int = 8
    absolute_timer: bool = True
    timer: bool = True


_OTHER: Final = bytes(16)
"""The row of what found no room, and the first key of the plain arrays."""


@dataclass(slots=True)
class HostPrograms:
    """Running programs of either loader.

    loader          `libbpf` or `bcc`
    tables          the bounded maps: cgroups, block_cgroups, devices, peers
    close           detaches everything
    cgroup_root     the hierarchy whose directory ids are the keys of `cgroups`, or None
    block_root      the hierarchy of `block_cgroups`, or None
    absent          hooks or metrics that this kernel or this loader lacks
    rhythm          marks of processes' rhythms; libbpf only
    program_fds     descriptors of the attached programs, for the kernel's statistics; libbpf only
    """

    loader: str
    cpu_states: PerCpuMap
    ticks: Ticks
    tables: dict[str, PerCpuMap]
    close: Callable[[], None]
    cgroup_root: str | None = None
    block_root: str | None = None
    absent: list[Absence] = field(default_factory=list)
    rhythm: RhythmMaps | None = None
    program_fds: dict[str, int] = field(default_factory=dict)

    def make_other_rows(self) -> None:
        """Give every bounded map its row for what will find no room."""
        for table in self.tables.values():
            table.set_zero(_OTHER[: table.key_bytes])

    def states(self) -> NDArray[np.uint64]:
        """Read uint64[cpus, CPU_STATE_FIELDS]."""
        return self.cpu_states.value(_OTHER[:4])

    def kept_back(self, states: NDArray[np.uint64]) -> list[tuple[int, dict[str, int]]]:
        """Give, for each CPU, the cgroup that runs there and what its row lacks.

        states  as `states()` gave them, before the rows are read: what is flushed meanwhile is then
                counted twice for one drain, and once in the end
        """
        columns = layout.PENDING_COLUMNS
        cpu_ns = columns.index("cpu_ns")
        pending = states[:, -len(columns) :].copy()
        running_ns, cgroups = states[:, -len(columns) - 2], states[:, -len(columns) - 1].tolist()
        pending[:, cpu_ns] += running_ns
        return [
            (cgroup, dict(zip(columns, row, strict=True)))
            for cgroup, row in zip(cgroups, pending.tolist(), strict=True)
            if cgroup
        ]
