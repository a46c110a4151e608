"""Cgroups as the kernel tells of them: which one a process is in, and what each waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from collectors.bpf.cgroup_names import hierarchy_of
from collectors.host.pressure import stall_totals
from collectors.port import SourceUnavailable

_PLACE_FRESH_NS: Final = 5_000_000_000
"""A process is put into its cgroup after it started: it is asked again."""
_MOST_PROCESSES: Final = 4_096
_LONGEST: Final = 16_384
_FIELDS: Final = 3


class ProcessPlace(NamedTuple):
    """A process's cgroup in the CPU hierarchy, as table `cgroup` names it, and its program."""

    cgroup: str
    program: str


Look = Callable[[int], ProcessPlace | None]


class Places:
    """Remembers a process for 5 s; one that ended keeps its last place while it is asked for."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or place_of
        self._known: dict[int, tuple[ProcessPlace, int]] = {}

    def of(self, pid: int, now_ns: int) -> ProcessPlace | None:
        """Give a process's place; None where it was never seen."""
        known = self._known.get(pid)
        if known is not None and now_ns - known[1] <= _PLACE_FRESH_NS:
            return known[0]
        found = self._look(pid) or (known[0] if known else None)
        if found is None:
            return None
        if len(self._known) >= _MOST_PROCESSES:
            self._known.clear()
        self._known[pid] = (found, now_ns)
        return found


def place_of(pid: int, proc: Path = Path("/proc")) -> ProcessPlace | None:
    """Ask /proc; None for a process that is gone."""
    try:
        cgroups = _text(proc / str(pid) / "cgroup")
        program = _text(proc / str(pid) / "comm").rstrip("\n")
    except OSError:
        return None
    return ProcessPlace(cpu_cgroup(cgroups), program)


def cpu_cgroup(text: str) -> str:
    """Find the CPU controller's path in /proc/PID/cgroup: cgroup v1's, else the unified one."""
    unified = "/"
    for line in text.splitlines():
        row = line.split(":", _FIELDS - 1)
        if len(row) == _FIELDS and "cpu" in row[1].split(","):
            return row[2]
        if len(row) == _FIELDS and row[0] == "0":
            unified = row[2]
    return unified


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_LONGEST).decode("utf-8", errors="replace")


_RESOURCES: Final = ("cpu", "memory", "io")
_LONGEST_FILE: Final = 4_096
_FRESH_NS: Final = 5_000_000_000
_MOST_CGROUPS: Final = 256

_Stalls = dict[str, tuple[int, int]]


class CgroupPressure:
    """Asked each second of the subjects' cgroups; the first answer about one is its base.

    root    of the unified hierarchy; None: nothing is ever found
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._before: dict[str, tuple[int, _Stalls, dict[str, float]]] = {}

    @classmethod
    def of_host(cls) -> CgroupPressure:
        """Use the hierarchy of this host's CPU controller, where that is the unified one."""
        try:
            found = hierarchy_of("cpu")
        except SourceUnavailable:
            return cls(None)
        return cls(Path(found.path) if found.unified else None)

    def signals(self, cgroup: str, now_ns: int) -> dict[str, float]:
        """Give what a cgroup was stalled for since the last question, in ms/s."""
        if self._root is None:
            return {}
        stalls = self._read(cgroup)
        before = self._before.get(cgroup)
        if before is not None and now_ns <= before[0]:
            return dict(before[2])  # two subjects of one cgroup
        base = before if before and now_ns - before[0] <= _FRESH_NS else None
        found = _grown(stalls, base[1], now_ns - base[0]) if base else {}
        if len(self._before) >= _MOST_CGROUPS:
            self._before.clear()
        self._before[cgroup] = (now_ns, stalls, found)
        return dict(found)

    def _read(self, cgroup: str) -> _Stalls:
        stalls: _Stalls = {}
        for resource in _RESOURCES:
            file = f"{self._root}{cgroup.rstrip('/')}/{resource}.pressure"
            try:
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                stalls[resource] = stall_totals(os.read(fd, _LONGEST_FILE), file)
            except (OSError, SourceUnavailable):
                continue  # removed while it was read, or switched off
            finally:
                os.close(fd)
        return stalls


def _grown(now: _Stalls, base: _Stalls, span_ns: int) -> dict[str, float]:
    return {
        f"pressure_{resource}_{kind}_ms_per_s": max(0, later - earlier) * 1e3 / span_ns
        for resource in now.keys() & base.keys()
        for kind, later, earlier in zip(
            ("some", "full"), now[resource], base[resource], strict=True
        )
    }
