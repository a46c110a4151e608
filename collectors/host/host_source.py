"""CPU, memory, disk and network of this machine, as means of the window, read from /proc.

Sources: proc(5), Documentation/admin-guide/iostats.rst of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from collectors.interface import SourceUnavailable
from collectors.kernel_files import KernelFile
from collectors.records.activity import Observation
from wire.catalogue import Catalogue

CPU_FIELDS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Guest time is part of user time already."""
_SECTOR_BYTES: Final = 512
_KIB: Final = 1024
_MOST_BYTES: Final = 1 << 20
_DISK_FIELDS: Final = 14
_LINK_FIELDS: Final = 16
_MEMORY: Final = re.compile(
    rb"^(MemTotal|MemFree|MemAvailable|Buffers|Cached|SReclaimable): +(\d{1,15}) kB$", re.MULTILINE
)
_LAYERED_LINKS: Final = (
    b"lo", b"ifb", b"veth", b"br-", b"docker", b"virbr", b"bond", b"cni", b"tun", b"tap",
)  # fmt: skip
_LAYERED: Final = (b"loop", b"ram", b"zram", b"dm-", b"md", b"sr", b"fd")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; `used` is what programs cannot have, `cached` with buffers and what can be freed."""

    total: int
    used: int
    cached: int


@dataclass(frozen=True, slots=True)
class HostCounters:
    """What grows: ticks; bytes read and written, busy ms; bytes received, sent. Memory as it is."""

    cpu: tuple[int, ...]
    memory: Memory
    disks: dict[bytes, tuple[int, int, int]]
    links: dict[bytes, tuple[int, int]]


class CounterFiles:
    def __init__(self, proc: str = "/proc") -> None:
        """Open them. Raises OSError."""
        self._stat, self._memory = KernelFile(f"{proc}/stat"), KernelFile(f"{proc}/meminfo")
        self._disks, self._links = KernelFile(f"{proc}/diskstats"), KernelFile(f"{proc}/net/dev")

    def read(self) -> HostCounters:
        """Read everything once. Raises OSError, ValueError for what no kernel writes."""
        return HostCounters(
            cpu_ticks(self._stat.head()),
            memory(self._memory.head()),
            disks(self._disks.whole(_MOST_BYTES)),
            links(self._links.whole(_MOST_BYTES)),
        )

    def close(self) -> None:
        for file in (self._stat, self._memory, self._disks, self._links):
            file.close()


def cpu_ticks(text: bytes) -> tuple[int, ...]:
    """Read the first line of /proc/stat. Raises ValueError."""
    name, *fields = text.partition(b"\n")[0].split()
    if name != b"cpu" or len(fields) < len(CPU_FIELDS):
        raise ValueError(f"expected ticks of {len(CPU_FIELDS)} kinds in /proc/stat, got {fields}")
    return tuple(map(int, fields[: len(CPU_FIELDS)]))


def memory(text: bytes) -> Memory:
    """Read /proc/meminfo. Raises ValueError."""
    found = {name: int(kib) * _KIB for name, kib in _MEMORY.findall(text)}
    total, free = found.get(b"MemTotal", 0), found.get(b"MemFree", 0)
    if not total:
        raise ValueError("expected MemTotal in /proc/meminfo")
    available = found.get(b"MemAvailable", 0)
    if not 0 < available <= total:  # what a container may show of its host
        available = min(free, total)
    kept = sum(found.get(name, 0) for name in (b"Buffers", b"Cached", b"SReclaimable"))
    return Memory(total, total - available, kept)


def disks(text: bytes) -> dict[bytes, tuple[int, int, int]]:
    """Read /proc/diskstats: whole disks only. Raises ValueError."""
    rows = [line.split() for line in text.splitlines()]
    if any(len(row) < _DISK_FIELDS for row in rows):
        raise ValueError(f"expected {_DISK_FIELDS} fields a line in /proc/diskstats")
    return {
        rows[place][2]: (
            int(rows[place][5]) * _SECTOR_BYTES,
            int(rows[place][9]) * _SECTOR_BYTES,
            int(rows[place][12]),
        )
        for place in whole_disks(tuple([row[2] for row in rows]))
    }


@lru_cache(maxsize=1)
def whole_disks(names: tuple[bytes, ...]) -> list[int]:
    """Leave out partitions and layered devices: their bytes are those of a disk that is listed."""
    own = [name for name in names if not name.startswith(_LAYERED)]
    return [
        place
        for place, name in enumerate(names)
        if name in own and not any(name != whole and name.startswith(whole) for whole in own)
    ]


def links(text: bytes) -> dict[bytes, tuple[int, int]]:
    """Read /proc/net/dev: interfaces that no other carries. Raises ValueError."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, counters = line.strip().rpartition(b":")
        if name.startswith(_LAYERED_LINKS):
            continue
        fields = counters.split()
        if len(fields) < _LINK_FIELDS:
            raise ValueError(f"expected {_LINK_FIELDS} fields a line in /proc/net/dev")
        found[name] = int(fields[0]), int(fields[8])
    return found


MILLION: Final = 1_000_000
SECTIONS: Final = ("host_cpu", "host_memory", "host_disk", "host_network")
_SHORTEST_NS: Final = 100_000_000
_NS_PER_S: Final = 1_000_000_000
_CPU_CELLS: Final = ("user", "system", "iowait", "interrupt", "steal")

Levels = dict[tuple[str, str], float]
"""(section, cell) -> level in the unit of the cell's full scale."""


class HostSource:
    """Samples /proc: each drain is the time since the one before, in millionths of full scale."""

    name = "host"

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        catalogue = catalogue or Catalogue.load()
        self._full_scale = {
            (section.name, coordinate.name): coordinate.full_scale
            for section in catalogue.sections
            if section.name in SECTIONS
            for coordinate in section.coordinates
        }
        self._files: CounterFiles | None = None
        self._before: HostCounters | None = None
        self._before_ns: int | None = None

    def probe(self) -> str | None:
        try:
            files = CounterFiles()
        except OSError as error:
            return f"host counters: {error}"
        try:
            files.read()
        except (OSError, ValueError) as error:
            return f"host counters: {error}"
        finally:
            files.close()
        return None

    def start(self) -> None:
        try:
            self._files, self._before_ns = self._files or CounterFiles(), None
        except OSError as error:
            raise SourceUnavailable(f"host counters: {error}") from None

    def drain(self, now_boottime_ns: int) -> Iterable[Observation]:
        """Return one observation per cell for the time since the last call.

        The first call and calls less than 100 ms apart give nothing: ticks are too coarse.
        """
        if self._files is None:
            raise SourceUnavailable("host counters: not started")
        before, before_ns = self._before, self._before_ns
        if before_ns is not None and now_boottime_ns - before_ns < _SHORTEST_NS:
            return []
        try:
            now = self._files.read()
        except (OSError, ValueError) as error:
            raise SourceUnavailable(f"host counters: {error}") from None
        self._before, self._before_ns = now, now_boottime_ns
        if before is None or before_ns is None:
            return []
        elapsed_ns = now_boottime_ns - before_ns
        levels = levels_of(now, before, elapsed_ns / _NS_PER_S)
        # The middle of the span: a sample that straddles two windows counts where most of it lies.
        at_ns = now_boottime_ns - elapsed_ns // 2
        return [
            Observation(
                *place, round(min(max(levels[place] / full_scale, 0.0), 1.0) * MILLION), at_ns
            )
            for place, full_scale in self._full_scale.items()
            if place in levels
        ]

    def stop(self) -> None:
        if self._files is not None:
            self._files.close()
        self._files = self._before = self._before_ns = None


def levels_of(now: HostCounters, before: HostCounters, elapsed_s: float) -> Levels:
    """Return every level; a counter that went backwards (a device came back) counts as 0."""
    levels = _cpu_percent(now.cpu, before.cpu)
    memory = now.memory
    levels["host_memory", "used"] = 100 * memory.used / memory.total
    levels["host_memory", "cached"] = 100 * memory.cached / memory.total
    busiest_ms = read = written = 0
    for disk, (bytes_read, bytes_written, busy_ms) in now.disks.items():
        then = before.disks.get(disk)
        if then is not None:
            read += max(0, bytes_read - then[0])
            written += max(0, bytes_written - then[1])
            busiest_ms = max(busiest_ms, busy_ms - then[2])
    levels["host_disk", "busy"] = 100 * busiest_ms / (1_000 * elapsed_s)
    levels["host_disk", "read"] = read / elapsed_s
    levels["host_disk", "write"] = written / elapsed_s
    received = sent = 0
    for link, (bytes_received, bytes_sent) in now.links.items():
        was = before.links.get(link)
        if was is not None:
            received += max(0, bytes_received - was[0])
            sent += max(0, bytes_sent - was[1])
    levels["host_network", "receive"] = received / elapsed_s
    levels["host_network", "transmit"] = sent / elapsed_s
    return levels


def _cpu_percent(now: tuple[int, ...], before: tuple[int, ...]) -> Levels:
    spent = [max(0, ticks - then) for ticks, then in zip(now, before, strict=True)]
    whole = sum(spent)
    if not whole:
        return {}
    parts = dict(zip(CPU_FIELDS, spent, strict=True))
    parts["user"] += parts["nice"]
    parts["interrupt"] = parts["irq"] + parts["softirq"]
    return {("host_cpu", cell): 100 * parts[cell] / whole for cell in _CPU_CELLS}
