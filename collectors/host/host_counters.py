"""One reading of the host's counters, from /proc.

A library that reads them for everybody opens each file anew and parses all of it, which takes five
times as long. Sources: proc(5), Documentation/admin-guide/iostats.rst of the kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from collectors.kernel_files import KernelFile

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
    """Everything that grows, and memory as it is.

    cpu     ticks by CPU_FIELDS, since the start
    disks   (bytes read, bytes written, busy milliseconds) of each whole disk
    links   (bytes received, bytes sent) of each interface of its own
    """

    cpu: tuple[int, ...]
    memory: Memory
    disks: dict[bytes, tuple[int, int, int]]
    links: dict[bytes, tuple[int, int]]


class CounterFiles:
    """The four files, open from the start on."""

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
        """Let them go."""
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
    """Leave out partitions and layered devices: their bytes are those of a disk that is listed.

    Gives the places of the others.
    """
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
