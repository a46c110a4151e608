"""Utilisation, memory, power, temperature and users of each accelerator; users stay on this host.

It sees how busy a GPU is but not with what: it claims as watched only the time in which the GPU did
nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from collectors.interface import SourceUnavailable, UnavailableSource
from collectors.kernel_log import load_rules
from collectors.records.activity import GpuCoverage, Observation
from collectors.records.basics import FailureKind, ProcessKey, ReadFailure
from transport.process.printable import printable

from .amdgpu import AmdgpuReader
from .bounded import BoundedReader, Spawner
from .device_port import (
    QUICK,
    REGULAR,
    SLOW,
    DeviceReader,
    DeviceReading,
    DeviceSample,
    DevicesUnavailable,
    Field,
    Measured,
    Partition,
    ProcessUse,
)
from .nvml import NvmlReader

_FRESH_NS: Final = 15_000_000_000


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
        with self._lock:
            self._indices |= {id_.partition("-")[2].lower(): index for id_, index in ids.items()}

    def index(self, uuid: str) -> int | None:
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
    units: list[tuple[str, tuple[ProcessUse, ...] | ReadFailure | None]]
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
    if reading.processes is None:
        return []
    found = uses(reading)
    shares = [use for use in found if not isinstance(use.sm_percent, ReadFailure)]
    said = list(_untold(reading))
    if len(shares) > 1 and not _parts(reading):
        said.append(
            f"time-slicing: {len(shares)} processes take turns; each SM share is the driver's "
            "sample of the last second, and work between two samples is missed"
        )
    elif len(shares) < len(found) and not _parts(reading):
        said.append("the driver gives no SM share by process here")
    if any(isinstance(use.memory_bytes, ReadFailure) for use in found):
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
        shared = any(
            not isinstance(s, ReadFailure) or s.kind is FailureKind.NOT_YET for s in shares
        )
        yield (
            "MIG: NVML gives no SM share by process and no utilisation of the whole GPU; memory is "
            f"by instance and process, the SM share {'by instance' if shared else 'by neither'}"
        )
        for part in parts:
            if isinstance(part.processes, ReadFailure):
                yield f"{part.id}: no processes: {part.processes.reason}"
    elif isinstance(reading.partitions, ReadFailure) and reading.values.get(Field.MIG):
        yield f"MIG instances: {reading.partitions.reason}"
    if isinstance(reading.processes, ReadFailure) and not parts:
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
        if isinstance(value, ReadFailure):
            return value
        total += value
    return total


def _plain(value: Measured) -> int | str:
    return f"{value.kind}: {value.reason}" if isinstance(value, ReadFailure) else value


SWEEP_NS: Final = 1_000_000_000
"""NVML's utilisation covers the last 1/6 s to 1 s: asked less often, busy time would be missed."""
SAMPLE_NS: Final = 5_000_000_000
_EARLY_NS: Final = 100_000_000
"""A loop that drains once a second is some milliseconds early half of the time: every second look
would be left out."""
STALE_NS: Final = 10_000_000_000
_LONGEST_IDLE_NS: Final = 2 * SWEEP_NS
_SWEEP_BUDGET_NS: Final = 2_000_000_000
_LOOKS_A_SAMPLE: Final = SAMPLE_NS // SWEEP_NS
_MOST_WATCHED: Final = 3
"""GPUs whose link is watched in one look, for 40 ms each: the other sources wait meanwhile."""
_MW_PER_W: Final = 1_000

_LIBRARY_MISSING: Final = "no NVIDIA driver library and no amdgpu device"


class _Reads(DeviceReader, Protocol):
    def ask(
        self, indices: Iterable[int], fields: Collection[Field], *, processes: bool = False
    ) -> None: ...


class DevicesSource:
    """Looks at every device once a second; a failed read is a gap and a count, never a zero."""

    name = "devices"

    def __init__(
        self,
        readers: Iterable[_Reads] | None = None,
        *,
        spawner: Spawner | None = None,
        users: GpuUsers | None = None,
        bound: Sequence[str] = (),
    ) -> None:
        """Take the readers to try in turn (None: NVML, then amdgpu); the first that opens serves.

        bound       `GPU-<uuid>` of each GPU that the host is known by: a device's index is its
                    place there, behind them where it is none of these. Empty: the reader's order
        """
        self._users = users
        self._bound = [uuid.strip().lower() for uuid in bound]
        self._places: dict[str, int] = {}
        self._missing: tuple[str, ...] = ()
        self._choices = list(readers) if readers is not None else default_readers(spawner)
        self._reader: _Reads | None = None
        self._devices = self._first = self._turn = 0
        self._cheap = False
        self._last: DeviceSample | None = None
        self._swept_ns: int | None = None
        self._sampled_ns: int | None = None
        self._idle_since: dict[int, int] = {}
        self._xids: dict[int, int] = {}
        self.gaps: Counter[tuple[Field, FailureKind]] = Counter()

    @property
    def absent(self) -> list[UnavailableSource]:
        return [
            UnavailableSource(f"{self.name}: {uuid}", "no driver lists it; its time is unmeasured")
            for uuid in self._missing
        ]

    def probe(self) -> str | None:
        try:
            self.start()
        except SourceUnavailable as error:
            return str(error)
        return None

    def start(self) -> None:
        if self._reader is not None:
            return
        reasons = []
        for reader in self._choices:
            try:
                inventory = reader.open()
            except DevicesUnavailable as error:
                reasons.append(str(error))
                continue
            if inventory.devices:
                self._reader, self._devices = reader, inventory.devices
                self._cheap = inventory.throughput_is_cheap
                self._look_for_bound(reader)
                return
            reader.close()
            reasons.append("a driver without devices")
        self._miss(self._bound)
        raise SourceUnavailable(f"devices: {'; '.join(reasons) or _LIBRARY_MISSING}")

    def _look_for_bound(self, reader: _Reads) -> None:
        if not self._bound:
            return
        ids = [reader.read(index, ()).id.strip().lower() for index in range(self._devices)]
        order = [*self._bound, *(uuid for uuid in ids if uuid not in self._bound)]
        self._places = {uuid: place for place, uuid in enumerate(order)}
        self._miss([uuid for uuid in self._bound if uuid not in ids])

    def _miss(self, uuids: Sequence[str]) -> None:
        self._missing = tuple(uuids)
        if self._users is not None:
            self._users.missing = frozenset(self._bound.index(uuid) for uuid in uuids)

    def _placed(self, reading: DeviceReading) -> DeviceReading:
        place = self._places.get(reading.id.strip().lower(), reading.index)
        return reading if place == reading.index else replace(reading, index=place)

    def drain(self, now_boottime_ns: int) -> Iterable[Observation | GpuCoverage]:
        """Yield samples every 5 s and idle time; calls well below a second apart give nothing.

        Each second it reads what changes quickly, every 5 s all fields of the regular sweep and
        the processes, which are shown on this host alone. The throughput of links is read each
        second, or in turns where that takes time.
        """
        if self._reader is None:
            raise SourceUnavailable("devices: not started")
        early_ns = now_boottime_ns + _EARLY_NS
        if self._swept_ns is not None and early_ns - self._swept_ns < SWEEP_NS:
            return []
        sampling = self._sampled_ns is None or early_ns - self._sampled_ns >= SAMPLE_NS
        self._swept_ns = now_boottime_ns
        if sampling:
            self._sampled_ns = now_boottime_ns
        readings = tuple(self._sweep(self._reader, sampling))
        self._last = DeviceSample(readings, self.gaps)
        if sampling and self._users is not None:
            # Also where nothing answered: who used a GPU last stays known while it is left alone.
            told = [(one.index, one.processes) for one in readings]
            self._users.see(
                {gpu: [one.pid for one in of] for gpu, of in told if isinstance(of, tuple)},
                now_boottime_ns,
            )
            for reading in readings:
                units = [reading.id, *(part.id for part in _parts(reading))]
                self._users.name(dict.fromkeys(units, reading.index))
        records: list[Observation | GpuCoverage] = []
        for reading in readings:
            self.gaps.update((name, gap.kind) for name, gap in reading.gaps.items())
            records.extend(self._idle_time(reading))
            records.extend(self._xid_fault(reading))
            if sampling:
                records.extend(observations(reading))
        return records

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._last = self._swept_ns = self._sampled_ns = None
        self._idle_since.clear()
        self._xids.clear()

    def latest(self, now_boottime_ns: int) -> DeviceSample | None:
        if self._swept_ns is None or now_boottime_ns - self._swept_ns > STALE_NS:
            return None
        return self._last

    def _sweep(self, reader: _Reads, sampling: bool) -> Iterator[DeviceReading]:
        """Look at each device until time is up, by one question for all asked the same."""
        begun_ns = time.monotonic_ns()
        first, self._first = self._first, 0
        order = [(first + place) % self._devices for place in range(self._devices)]
        watched = self._watched_now()
        quick = REGULAR if sampling else QUICK
        for indices, fields in (
            ([index for index in order if index in watched], quick | SLOW),
            ([index for index in order if index not in watched], quick),
        ):
            reader.ask(indices, fields, processes=sampling)
            for index in indices:
                if time.monotonic_ns() - begun_ns > _SWEEP_BUDGET_NS:
                    self._first = index
                    return
                yield self._placed(reader.read(index, fields, processes=sampling))

    def _watched_now(self) -> frozenset[int]:
        if self._cheap:
            return frozenset(range(self._devices))
        share = min(-(-self._devices // _LOOKS_A_SAMPLE), _MOST_WATCHED)
        begin, self._turn = self._turn, self._turn + share
        return frozenset((begin + place) % self._devices for place in range(share))

    def _idle_time(self, reading: DeviceReading) -> Iterator[GpuCoverage]:
        since_ns = self._idle_since.pop(reading.index, None)
        if reading.values.get(Field.UTILISATION) != 0:
            return
        self._idle_since[reading.index] = reading.end_ns
        if since_ns is not None and 0 < reading.end_ns - since_ns <= _LONGEST_IDLE_NS:
            yield GpuCoverage(self.name, reading.index, since_ns, reading.end_ns - since_ns)

    def _xid_fault(self, reading: DeviceReading) -> Iterator[Observation]:
        """Give a new XID's fault, for hosts with a closed log; what tells no place is the log's."""
        count = reading.values.get(Field.XID_EVENTS)
        if count is None:
            return
        before = self._xids.get(reading.index, 0)
        self._xids[reading.index] = count
        code = reading.values.get(Field.XID_LAST, 0)
        rules = load_rules()
        if count and count != before and code in rules.xids and code not in rules.anywhere:
            yield Observation("hardware_faults", rules.xids[code], 1, reading.end_ns)


def observations(reading: DeviceReading) -> Iterator[Observation]:
    """Give a look's samples for the catalogue's sections; a gap is a sample less."""
    values = reading.values
    at_ns = reading.end_ns
    if Field.UTILISATION in values:
        yield Observation("gpu_utilisation", "", values[Field.UTILISATION], at_ns)
    used, total = values.get(Field.MEMORY_USED), values.get(Field.MEMORY_TOTAL)
    if used is not None and total:
        yield Observation("gpu_memory", "", 100 * used // total, at_ns)
    if Field.POWER in values:
        yield Observation("gpu_power", "", values[Field.POWER] // _MW_PER_W, at_ns)
    if Field.TEMPERATURE in values:
        yield Observation("gpu_temperature", "", max(0, values[Field.TEMPERATURE]), at_ns)


def default_readers(spawner: Spawner | None = None) -> list[_Reads]:
    """Give this host's readers, each behind a deadline."""
    makers: tuple[Callable[[], NvmlReader | AmdgpuReader], ...] = (NvmlReader, AmdgpuReader)
    return [BoundedReader(make, spawner, deadline_s=1.0) for make in makers]
