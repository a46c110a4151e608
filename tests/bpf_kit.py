"""Loads in cgroups of their own, and the kernel's independent counters."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np

from collectors.ebpf.ebpf_source import EbpfSource
from collectors.records.activity import HostRecord, HostTable, HostTicks

CGROUPS = Path("/sys/fs/cgroup")
LOADS = Path(__file__).with_name("bpf_loads.py")


def enumeration(header: str, name: str) -> list[str]:
    """Give the constants of a C header's enum, in lower case."""
    body = re.search(rf"enum {name} {{(.*?)}};", header, re.DOTALL)
    assert body
    plain = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    return [part.split("=")[0].strip().lower() for part in plain.split(",") if part.strip()]


@dataclass
class Seen:
    ticks: HostTicks | None = None
    tables: dict[str, HostTable] = field(default_factory=dict)

    def total(self, metric: str) -> int:
        return sum(self.tables["cpu"].column(metric).values())

    def row(self, table: str, name: str) -> Mapping[str, int]:
        """One row's columns; zeros where the table or the row is not there."""
        found = self.tables.get(table)
        if found is None or name not in found.rows:
            return dict.fromkeys(found.columns if found else (), 0)
        values = found.values[found.rows.index(name)].tolist()
        return dict(zip(found.columns, values, strict=True))


def drain(source: EbpfSource) -> Seen:
    return taken(source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))


def taken(records: Iterable[HostRecord]) -> Seen:
    seen = Seen()
    for record in records:
        if isinstance(record, HostTicks):
            seen.ticks = record
        elif isinstance(record, HostTable):
            seen.tables[record.name] = record
    return seen


def remove_cgroup(path: Path) -> None:
    """Remove an emptied cgroup; one that is still in use after two seconds stays."""
    for _ in range(100):
        try:
            path.rmdir()
        except OSError:
            time.sleep(0.02)  # its last task is still on its way out
        else:
            return


class Cgroup:
    """A v1 cgroup of one controller, gone at the end of the block."""

    def __init__(self, controller: str) -> None:
        # /proc/self/cgroup may name a group that this mount does not show: begin at its root.
        self.path = CGROUPS / controller / f"pointillist-{uuid4().hex[:12]}"
        self.name = f"/{self.path.name}"
        self.path.mkdir()

    def set(self, file: str, value: int) -> None:
        (self.path / file).write_text(str(value))

    def get(self, file: str) -> int:
        return int((self.path / file).read_text())

    def stat(self, file: str) -> dict[str, int]:
        rows = (line.split() for line in (self.path / file).read_text().splitlines())
        return {name: int(value) for name, value in rows}

    def remove(self) -> None:
        remove_cgroup(self.path)


@contextmanager
def cgroup(controller: str) -> Iterator[Cgroup]:
    group = Cgroup(controller)
    try:
        yield group
    finally:
        group.remove()


class Load:
    """A load that waits to be told to go, and once more before it ends."""

    def __init__(
        self, name: str, argument: object, groups: tuple[Cgroup, ...] = (), *prefix: str, cwd: Path
    ) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-S", str(LOADS), name, str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self.pid = self._process.pid
        assert self._say() == "ready"
        for group in groups:
            group.set("cgroup.procs", self.pid)

    def go(self) -> None:
        self._tell()

    def wait(self) -> list[str]:
        """Wait until the work is done; give what it said before."""
        said: list[str] = []
        while (line := self._say()) != "done":
            assert line, "the load died"
            said.append(line)
        return said

    def end(self) -> None:
        if self._process.poll() is None:
            self._tell()
        self._process.wait(timeout=10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def schedstat(self) -> tuple[int, int]:
        """Nanoseconds on a CPU, and waiting for one."""
        ran, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text(encoding="utf-8").split()
        return int(ran), int(waited)

    def involuntary(self) -> int:
        return int(_field(Path(f"/proc/{self.pid}/status"), "nonvoluntary_ctxt_switches:"))

    def faults(self) -> int:
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return int(stat[7]) + int(stat[9])

    def retransmits(self) -> int:
        """TCP segments sent again in the load's own network namespace."""
        names, values = [
            line.split()
            for line in Path(f"/proc/{self.pid}/net/snmp").read_text(encoding="utf-8").splitlines()
            if line.startswith("Tcp:")
        ]
        return int(values[names.index("RetransSegs")])

    def _say(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def _tell(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def _field(path: Path, name: str) -> str:
    return next(
        line.split()[1]
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(name)
    )


def softirqs() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lines = Path("/proc/softirqs").read_text(encoding="utf-8").splitlines()[1:]
    return np.array([sum(map(int, line.split()[1:])) for line in lines])


def device_interrupts() -> int:
    total = 0
    lines = Path("/proc/interrupts").read_text(encoding="utf-8").splitlines()
    cpus = len(lines[0].split())
    for line in lines[1:]:
        name, *rest = line.split()
        if name.rstrip(":").isdigit():
            total += sum(map(int, rest[:cpus]))
    return total


def diskstats(device: str) -> dict[str, int]:
    for line in Path("/proc/diskstats").read_text(encoding="utf-8").splitlines():
        _, _, name, *numbers = line.split()
        if name == device:
            reads, _, read, read_ms, writes, _, written, write_ms, *_ = map(int, numbers)
            return {
                "reads": reads,
                "writes": writes,
                "read_bytes": 512 * read,
                "write_bytes": 512 * written,
                "ms": read_ms + write_ms,
            }
    raise LookupError(f"no {device} in /proc/diskstats")


def page_faults() -> int:
    return int(_field(Path("/proc/vmstat"), "pgfault"))
