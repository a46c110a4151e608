"""Cgroups of the bench under one parent in each v1 hierarchy it needs, and their counters."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
HIERARCHIES: Final = ("cpu", "cpuacct", "memory", "blkio")
PARENT: Final = "pointillist-bench"
"""Everything below it is ours: what is left over is found, and ended, by this name alone."""
NO_QUOTA: Final = -1
NO_LIMIT: Final = -1


class Cgroup:
    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/{PARENT}/{name}"
        """As the agent names it."""
        for hierarchy in HIERARCHIES:
            self.folder(hierarchy).mkdir(parents=True, exist_ok=True)

    def folder(self, hierarchy: str) -> Path:
        return ROOT / hierarchy / PARENT / self.name

    def task_files(self, memory_of: Cgroup | None = None) -> list[Path]:
        """Files that a process writes its id to in order to enter; its memory may be another's."""
        folders = [
            (memory_of if memory_of and hierarchy == "memory" else self).folder(hierarchy)
            for hierarchy in HIERARCHIES
        ]
        return [folder / "cgroup.procs" for folder in folders]

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder("cpu") / "cgroup.procs").read_text().split()]

    def set_quota(self, cores: float | None, period_us: int = 100_000) -> None:
        folder = self.folder("cpu")
        if cores is None:
            (folder / "cpu.cfs_quota_us").write_text(str(NO_QUOTA))
            return
        (folder / "cpu.cfs_period_us").write_text(str(period_us))
        (folder / "cpu.cfs_quota_us").write_text(str(max(1000, round(cores * period_us))))

    def set_shares(self, tasks: float) -> None:
        (self.folder("cpu") / "cpu.shares").write_text(str(max(2, round(1024 * tasks))))

    def set_memory_limit(self, size: int | None) -> None:
        """Allow this many bytes; the kernel reclaims what is above before it returns."""
        limit = self.folder("memory") / "memory.limit_in_bytes"
        if size is None:
            limit.write_text(str(NO_LIMIT))
            return
        for _ in range(20):
            with contextlib.suppress(OSError):  # EBUSY: not reclaimed yet
                limit.write_text(str(size))
                return
            time.sleep(0.05)
        raise RuntimeError(f"expected room to lower the limit to {size} bytes")

    def drop_cold(self) -> None:
        """Reclaim what can be: what is charged afterwards is what is used."""
        with contextlib.suppress(OSError):  # EBUSY: some pages stay
            (self.folder("memory") / "memory.force_empty").write_text("0")

    def memory_bytes(self) -> int:
        """Charged now: anonymous memory and page cache."""
        return int((self.folder("memory") / "memory.usage_in_bytes").read_text())

    def anonymous_bytes(self) -> int:
        """Charged now: what cannot be reclaimed without swap."""
        return self._statistic("memory", "memory.stat", "total_rss")

    def limit_hits(self) -> int:
        return int((self.folder("memory") / "memory.failcnt").read_text())

    def cpu_s(self) -> float:
        return int((self.folder("cpuacct") / "cpuacct.usage").read_text()) / 1e9

    def throttled(self) -> tuple[int, float]:
        return (
            self._statistic("cpu", "cpu.stat", "nr_throttled"),
            self._statistic("cpu", "cpu.stat", "throttled_time") / 1e9,
        )

    def _statistic(self, hierarchy: str, file: str, name: str) -> int:
        for line in (self.folder(hierarchy) / file).read_text().splitlines():
            key, value = line.split()
            if key == name:
                return int(value)
        raise RuntimeError(f"expected {name} in {file} of cgroup v1, found none")

    def run_delay_s(self) -> float:
        """Time that the processes now inside have waited for a CPU, throttling included."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    total += int((task / "schedstat").read_text().split()[1])
        return total / 1e9


def kill_all(patience_s: float = 5.0) -> int:
    """End every process in the bench's cgroups; returns how many there were."""
    ended, give_up = set[int](), time.monotonic() + patience_s
    while pids := _all_pids():
        if time.monotonic() > give_up:
            raise RuntimeError(f"expected processes {sorted(pids)} to end, they are still there")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGCONT)
        ended |= pids
        time.sleep(0.05)
    return len(ended)


def _all_pids() -> set[int]:
    pids = set[int]()
    for hierarchy in HIERARCHIES:
        for file in (ROOT / hierarchy / PARENT).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                pids |= {int(pid) for pid in file.read_text().split()}
    return pids - {os.getpid()}


def remove_all() -> int:
    """Remove the bench's empty cgroups; returns how many there were."""
    found = [
        folder
        for parent in (ROOT / hierarchy / PARENT for hierarchy in HIERARCHIES)
        for folder in (*sorted(parent.rglob("*"), reverse=True), parent)
        if folder.is_dir()
    ]
    for folder in found:
        give_up = time.monotonic() + 2.0
        while folder.exists():
            with contextlib.suppress(OSError):  # its last process has not been reaped yet
                folder.rmdir()
            if time.monotonic() > give_up:
                raise RuntimeError(f"expected {folder} to be empty, it is still in use")
            time.sleep(0.01)
    return len(found)
