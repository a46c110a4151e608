"""What this host's numbers are now: GPUs with whose they are, work by family; one lock, no I/O.
Whose: of a control group's path, which users choose, so each is a number, a uid or 64 hex digits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from threading import Lock
from typing import Final, NamedTuple

from collectors.binaries.proc_maps import coarse, process_key
from collectors.devices.device_port import DeviceReading, Field, Measured, ProcessUse
from collectors.gpu_calls.process_identity import ProcessTable
from collectors.records.basics import ReadFailure
from collectors.records.gpu_calls import CountedCalls, GpuCalls, ProcessLabels
from collectors.records.gpu_time import NO_TIME, EstimatedTime, GpuTimes, summed
from collectors.rounds import Drained

MOST_WORKLOADS: Final = 64
KEPT_NS: Final = 600_000_000_000
"""So long after its last work a workload keeps its rows: several scrapes see its end."""


class HostWorkload(NamedTuple):
    """What a process belongs to, "" where it is not to be seen: number of Slurm's job, uid of
    Kubernetes' pod, 64 hexadecimal digits of a container; named as their labels are.
    """

    hpc_job: str = ""
    pod_uid: str = ""
    container_id: str = ""


NO_WORKLOAD: Final = HostWorkload()
OTHER: Final = HostWorkload("other")
"""Those beyond MOST_WORKLOADS together; no job has a word for a number."""


def workload_of(labels: ProcessLabels) -> HostWorkload:
    return HostWorkload(labels.slurm_job, labels.pod, labels.container)


@dataclass(slots=True)
class FamilyTotal:
    """What a workload's kernels of one family came to: launches, time on all GPUs. `shown_s`: the
    highest value of `time`, as estimates of single windows may be below 0.
    """

    launches: CountedCalls = field(default_factory=lambda: CountedCalls.exactly(0))
    time: EstimatedTime = NO_TIME
    shown_s: float = 0.0


class FamilyRow(NamedTuple):
    """One row of totals; None: a source told nothing of it, or a part has no error.
    Variances are of random errors, below and above bound what all launches share.
    """

    workload: HostWorkload
    family: str
    launches: float | None
    launches_variance: float | None
    time_s: float | None
    time_variance_s2: float | None
    launches_below: float | None = None
    launches_above: float | None = None


class WorkTotals:
    """Launches and time by workload and family; both only grow while a workload is kept."""

    def __init__(self) -> None:
        self._totals: OrderedDict[HostWorkload, dict[str, FamilyTotal]] = OrderedDict()
        self._seen_ns: dict[HostWorkload, int] = {}

    def add_launches(
        self, workload: HostWorkload, family: str, launches: CountedCalls, now_ns: int
    ) -> None:
        total = self._total(workload, family, now_ns)
        total.launches = CountedCalls.total((total.launches, launches), launches.share)

    def add_time(
        self, workload: HostWorkload, family: str, time: EstimatedTime, now_ns: int
    ) -> None:
        total = self._total(workload, family, now_ns)
        total.time = summed((total.time, time)) if total.time is not NO_TIME else time
        total.shown_s = max(total.shown_s, total.time.value_ns / 1e9)

    def rows(self, now_ns: int) -> Iterator[FamilyRow]:
        """Give all rows, and forget workloads that have been still for long."""
        for workload in [w for w, at_ns in self._seen_ns.items() if now_ns - at_ns > KEPT_NS]:
            del self._totals[workload], self._seen_ns[workload]
        for workload, families in self._totals.items():
            for family, total in families.items():
                yield _row(workload, family, total)

    def _total(self, workload: HostWorkload, family: str, now_ns: int) -> FamilyTotal:
        if workload not in self._totals and len(self._totals) >= MOST_WORKLOADS:
            workload = OTHER
        self._seen_ns[workload] = now_ns
        return self._totals.setdefault(workload, {}).setdefault(family, FamilyTotal())


def _row(workload: HostWorkload, family: str, total: FamilyTotal) -> FamilyRow:
    launches, time = total.launches, total.time
    counted = launches.value > 0
    timed = time is not NO_TIME
    errors = (launches.variance, launches.below, launches.above)
    variance, below, above = (error if counted and isfinite(error) else None for error in errors)
    return FamilyRow(
        workload,
        family,
        launches.value if counted else None,
        variance,
        total.shown_s if timed else None,
        time.variance / 1e18 if timed and time.variance is not None else None,
        below,
        above,
    )


MOST_DEVICES: Final = 64
MOST_USERS: Final = 64
"""Processes of one GPU whose control group is read in a look."""
FRESH_NS: Final = 15_000_000_000
"""Three looks at all fields: what was not told for longer is absent."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU: fresh fields, the workload that alone has processes on it, memory by workload."""

    reading: DeviceReading
    workload: HostWorkload
    memory: tuple[tuple[HostWorkload, int], ...]


@dataclass(frozen=True, slots=True)
class HostSnapshot:
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
    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._processes = ProcessTable(proc=proc)
        self._devices: dict[int, _Device] = {}
        self._work = WorkTotals()
        self._lock = Lock()

    def take(self, drained: Drained, now_ns: int) -> None:
        """Take a drain. `now_ns`: CLOCK_BOOTTIME."""
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
        if isinstance(memory, ReadFailure):
            gaps.add(workload)
        else:
            total[workload] += memory
    return tuple((workload, total[workload]) for workload in total if workload not in gaps)
