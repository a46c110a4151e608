"""Who uses a device: by process, container and MIG instance, and in words what NVML does not tell.

All of it stays on this host.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from collectors.records.gap import Gap, GapKind
from collectors.records.process import ProcessKey
from transport.process.printable import printable

from .device_port import DeviceReading, Field, Measured, Partition, ProcessUse

_FRESH_NS: Final = 15_000_000_000
"""Three looks at processes: older ones say nothing."""


class GpuUsers:
    """Processes by GPU; made once and handed to all sources, so that a reload keeps it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[int, frozenset[int]] = {}
        self._seen_ns = 0
        self._indices: dict[str, int] = {}
        self.missing: frozenset[int] = frozenset()
        """GPUs that the host is known by, and no driver lists: none of their time is measured."""
        self.timed: frozenset[ProcessKey] = frozenset()
        """Processes whose GPU time is measured: no other source counts their kernels and copies."""

    def name(self, ids: Mapping[str, int]) -> None:
        """Note the index of GPUs and of instances, by `GPU-<uuid>` and `MIG-<uuid>`."""
        with self._lock:
            self._indices |= {id_.partition("-")[2].lower(): index for id_, index in ids.items()}

    def index(self, uuid: str) -> int | None:
        """Give the index of the GPU that has this uuid, or of which an instance has it."""
        return self._indices.get(uuid.lower())

    def see(self, pids: Mapping[int, Iterable[int]], boottime_ns: int) -> None:
        """Note the processes of the GPUs that were asked, by index; others stay as they were."""
        with self._lock:
            self._pids |= {gpu: frozenset(of) for gpu, of in pids.items()}
            self._seen_ns = boottime_ns

    def gpus(self, pid: int, boottime_ns: int) -> tuple[int, ...]:
        """Give the GPUs of a process, in order; empty where no driver names it."""
        if not self._known(boottime_ns):
            return ()
        return tuple(sorted(gpu for gpu, pids in self._pids.items() if pid in pids))

    def pids(self, gpu: int, boottime_ns: int) -> frozenset[int]:
        """Give the processes on a GPU; empty where no driver tells."""
        return self._pids.get(gpu, frozenset()) if self._known(boottime_ns) else frozenset()

    def told(self, gpu: int, boottime_ns: int) -> bool:
        """Tell whether the driver names the processes on a GPU, if only to say that none is."""
        return gpu in self._pids and self._known(boottime_ns)

    def _known(self, boottime_ns: int) -> bool:
        return bool(self._seen_ns) and boottime_ns - self._seen_ns <= _FRESH_NS


_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_NAMED: Final = re.compile(r"/(?:lxc/|lxc\.payload\.|machine\.slice/machine-)([^/]{1,64})")


def container_of(cgroup: str) -> str:
    """Give the container of a control group's path, "" where the path names none.

    Docker, containerd, CRI-O and Podman name the group by the container's 64 hex digits (of nested
    ones the innermost counts), LXC and systemd-nspawn by its name.
    """
    found = _CONTAINER.findall(cgroup)
    if found:
        return str(found[-1])
    named = _NAMED.search(cgroup)
    return named[1].removesuffix(".scope") if named else ""


@dataclass(frozen=True, slots=True)
class Use(ProcessUse):
    """A process, or all of a container, on one device or MIG instance (`unit`)."""

    unit: str = ""
    container: str = ""


def uses(reading: DeviceReading) -> list[Use]:
    """Give every process once: under MIG by its instance, else by the device."""
    units: list[tuple[str, tuple[ProcessUse, ...] | Gap | None]]
    units = [(part.id, part.processes) for part in _parts(reading)]
    return [
        _use(unit, process)
        for unit, processes in units or [(reading.id, reading.processes)]
        if isinstance(processes, tuple)
        for process in processes
    ]


def by_container(found: Iterable[Use]) -> list[Use]:
    """Add up what each container holds of each unit; with one gap among them the sum is a gap."""
    groups: dict[tuple[str, str], list[Use]] = {}
    for use in found:
        if use.container:
            groups.setdefault((use.unit, use.container), []).append(use)
    return [
        Use(
            0, _sum(use.memory_bytes for use in group), _sum(use.sm_percent for use in group),
            unit=unit, container=container,
        )
        for (unit, container), group in groups.items()
    ]  # fmt: skip


def limits(reading: DeviceReading) -> list[str]:
    """Say what the driver does not tell about this look's use of the device."""
    if reading.processes is None:
        return []
    found = uses(reading)
    shares = [use for use in found if not isinstance(use.sm_percent, Gap)]
    said = list(_untold(reading))
    if len(shares) > 1 and not _parts(reading):
        said.append(
            f"time-slicing: {len(shares)} processes take turns; each SM share is the driver's "
            "sample of the last second, and work between two samples is missed"
        )
    elif len(shares) < len(found) and not _parts(reading):
        said.append("the driver gives no SM share by process here")
    if any(isinstance(use.memory_bytes, Gap) for use in found):
        said.append("the driver gives no memory by process here")
    unseen = sum(not use.name for use in found)
    if unseen:
        said.append(f"{unseen} processes are not visible from here (another PID namespace)")
    return said


def document(reading: DeviceReading) -> dict[str, Any]:
    """Give one device's uses as a JSON document; a gap is a string, which no number is."""
    found = uses(reading)
    parts = [
        {"id": part.id, "memory_used_bytes": _plain(part.memory_used_bytes),
         "memory_total_bytes": _plain(part.memory_total_bytes),
         "sm_percent": _plain(part.sm_percent)}
        for part in _parts(reading)
    ]  # fmt: skip
    return {
        "index": reading.index,
        "id": reading.id,
        "model": reading.model,
        "processes": [
            {"on": use.unit, "pid": use.pid, "name": use.name, "container": use.container,
             "memory_bytes": _plain(use.memory_bytes), "sm_percent": _plain(use.sm_percent)}
            for use in found
        ],
        "containers": [
            {"on": use.unit, "container": use.container,
             "memory_bytes": _plain(use.memory_bytes), "sm_percent": _plain(use.sm_percent)}
            for use in by_container(found)
        ],
        "mig_instances": parts,
        "not_told": limits(reading),
    }  # fmt: skip


def _parts(reading: DeviceReading) -> tuple[Partition, ...]:
    return reading.partitions if isinstance(reading.partitions, tuple) else ()


def _untold(reading: DeviceReading) -> Iterator[str]:
    parts = _parts(reading)
    if parts:
        shares = [part.sm_percent for part in parts]
        shared = not all(isinstance(s, Gap) and s.kind is not GapKind.NOT_YET for s in shares)
        yield (
            "MIG: NVML gives no SM share by process and no utilisation of the whole GPU; memory is "
            f"by instance and process, the SM share {'by instance' if shared else 'by neither'}"
        )
        for part in parts:
            if isinstance(part.processes, Gap):
                yield f"{part.id}: no processes: {part.processes.reason}"
    elif isinstance(reading.partitions, Gap) and reading.values.get(Field.MIG):
        yield f"MIG instances: {reading.partitions.reason}"
    if isinstance(reading.processes, Gap) and not parts:
        yield f"no processes: {reading.processes.reason}"


def _use(unit: str, process: ProcessUse) -> Use:
    return Use(
        process.pid,
        process.memory_bytes,
        process.sm_percent,
        process.cgroup,
        printable(process.name),
        unit,
        printable(container_of(process.cgroup)),
    )


def _sum(values: Iterable[Measured]) -> Measured:
    total = 0
    for value in values:
        if isinstance(value, Gap):
            return value
        total += value
    return total


def _plain(value: Measured) -> int | str:
    return f"{value.kind}: {value.reason}" if isinstance(value, Gap) else value
