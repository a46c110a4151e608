"""What this host's numbers are now: GPUs with whose they are, work by family; one lock, no I/O.

The agent's loop puts drains in, the threads of scrapes and of the sender take snapshots out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from collectors.binaries.proc_maps import coarse, process_key
from collectors.devices.device_port import DeviceReading, Field, Measured, ProcessUse
from collectors.gpu_calls.process_identity import ProcessTable
from collectors.records.basics import Gap
from collectors.records.gpu_calls import GpuCalls
from collectors.records.gpu_time import GpuTimes
from collectors.rounds import Drained

from .host_workloads import NO_WORKLOAD, FamilyRow, HostWorkload, WorkTotals, workload_of

MOST_DEVICES: Final = 64
MOST_USERS: Final = 64
"""Processes of one GPU whose control group is read in a look."""
FRESH_NS: Final = 15_000_000_000
"""Three looks at all fields: what was not told for longer is absent."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU.

    reading    every field with its last value, where that is fresh
    workload   that alone has processes on it; empty where none has, several have, or nobody tells
    memory     bytes by workload, where the driver tells them by process
    """

    reading: DeviceReading
    workload: HostWorkload
    memory: tuple[tuple[HostWorkload, int], ...]


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """This host at one moment."""

    unix_ns: int
    gpus: tuple[GpuNow, ...]
    families: tuple[FamilyRow, ...]


@dataclass(slots=True)
class _Device:
    """What is known of one GPU; each field with when it was told, CLOCK_BOOTTIME."""

    reading: DeviceReading
    told: dict[Field, tuple[Measured, int]] = field(default_factory=dict)
    users: tuple[HostWorkload, ...] = ()
    memory: tuple[tuple[HostWorkload, int], ...] = ()
    used_ns: int = 0


class HostNumbers:
    """Takes drains, gives snapshots."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._processes = ProcessTable(proc=proc)
        self._devices: dict[int, _Device] = {}
        self._work = WorkTotals()
        self._lock = Lock()

    def take(self, drained: Drained, now_ns: int) -> None:
        """Take a drain.

        now_ns   CLOCK_BOOTTIME
        """
        looks = drained.look.devices[:MOST_DEVICES] if drained.look is not None else ()
        used = {look.index: self._uses(look) for look in looks if look.processes is not None}
        with self._lock:
            for look in looks:
                self._look(look, used.get(look.index))
            for record in drained.records:
                if isinstance(record, GpuCalls):
                    self._launches(record, now_ns)
                elif isinstance(record, GpuTimes):
                    self._times(record, now_ns)

    def snapshot(self, unix_ns: int, now_ns: int) -> HostSnapshot:
        """Give everything as it is now."""
        with self._lock:
            gpus = [_gpu(device, now_ns) for _, device in sorted(self._devices.items())]
            families = tuple(self._work.rows(now_ns))
        return HostSnapshot(unix_ns, tuple(gpu for gpu in gpus if gpu.reading.values), families)

    def _look(self, look: DeviceReading, used: list[tuple[HostWorkload, Measured]] | None) -> None:
        device = self._devices.get(look.index)
        if device is None or device.reading.id != look.id:
            device = self._devices[look.index] = _Device(look)
        if device.reading.end_ns == look.end_ns and device.told:
            return
        device.reading = look if look.model else replace(look, model=device.reading.model)
        device.told.update((name, (value, look.end_ns)) for name, value in look.fields.items())
        if used is not None:
            device.users = tuple({workload: None for workload, _ in used})
            device.memory = _added(used)
            device.used_ns = look.end_ns

    def _uses(self, look: DeviceReading) -> list[tuple[HostWorkload, Measured]]:
        """Say whose the processes of a GPU are, by its instances where it has any."""
        found = look.processes if isinstance(look.processes, tuple) else ()
        if isinstance(look.partitions, tuple) and look.partitions:
            parts = [part.processes for part in look.partitions]
            found = tuple(use for of in parts if isinstance(of, tuple) for use in of)
        return [(self._workload(use), use.memory_bytes) for use in found[:MOST_USERS]]

    def _workload(self, use: ProcessUse) -> HostWorkload:
        process = process_key(self._proc, use.pid)
        return NO_WORKLOAD if process is None else workload_of(self._processes.identity(process))

    def _launches(self, calls: GpuCalls, now_ns: int) -> None:
        whose = {called.process: workload_of(called.identity) for called in calls.processes}
        for kernel in calls.kernels:
            workload = whose.get(kernel.process, NO_WORKLOAD)
            self._work.add_launches(workload, kernel.family, kernel.launches, now_ns)

    def _times(self, times: GpuTimes, now_ns: int) -> None:
        for timed in times.processes:
            if timed.families:
                workload = workload_of(self._processes.identity(coarse(timed.process)))
                for family in timed.families:
                    self._work.add_time(workload, family.family, family.time, now_ns)


def _gpu(device: _Device, now_ns: int) -> GpuNow:
    fresh = {
        name: value for name, (value, at_ns) in device.told.items() if now_ns - at_ns <= FRESH_NS
    }
    known = now_ns - device.used_ns <= FRESH_NS
    alone = device.users[0] if known and len(device.users) == 1 else NO_WORKLOAD
    reading = replace(device.reading, fields=fresh, processes=None, partitions=None)
    return GpuNow(reading, alone, device.memory if known else ())


def _added(used: Iterable[tuple[HostWorkload, Measured]]) -> tuple[tuple[HostWorkload, int], ...]:
    """Add memory up by workload; one gap leaves its workload out."""
    total: Counter[HostWorkload] = Counter()
    gaps = set()
    for workload, memory in used:
        if isinstance(memory, Gap):
            gaps.add(workload)
        else:
            total[workload] += memory
    return tuple((workload, total[workload]) for workload in total if workload not in gaps)
