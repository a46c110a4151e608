"""On which GPUs a process's calls are counted, and which GPUs were watched whole.

A launch names no GPU. Where a driver tells which process uses which GPU, calls are spread evenly
over the process's own; else over all GPUs of the host. Either way a host's row is a partition of
the wall time of its GPUs, so the bounds hold whatever the truth is; only where the launches lie
among the host's GPUs may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from collectors.devices.uses import GpuUsers
from collectors.records.process import ProcessKey


class GpuPlaces(NamedTuple):
    """GPUs of this host, and who uses them.

    gpus   how many there are, by the configuration
    users  what the driver tells; empty where none does
    """

    gpus: int
    users: GpuUsers

    def of(self, process: ProcessKey, boottime_ns: int) -> tuple[int, ...]:
        """Give the GPUs over which a process's calls are spread; none where the host has none."""
        told = self.users.gpus(process.pid, boottime_ns)
        own = tuple(gpu for gpu in told if gpu < self.gpus)
        return own or tuple(range(self.gpus))

    def watched(self, probed: Collection[int], boottime_ns: int) -> tuple[int, ...]:
        """Give the GPUs of which all processes are probed.

        probed  pids with at least one probed file
        """
        return tuple(
            gpu
            for gpu in range(self.gpus)
            if self.users.pids(gpu, boottime_ns) <= frozenset(probed)
        )
