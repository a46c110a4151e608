"""In which cgroup a process is, and what its program is called: asked of /proc, and remembered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_FRESH_NS: Final = 5_000_000_000
"""A process is put into its cgroup after it started: it is asked again."""
_MOST: Final = 4_096
_LONGEST: Final = 16_384
_FIELDS: Final = 3


class ProcessPlace(NamedTuple):
    """A process's cgroup in the CPU hierarchy, as table `cgroup` names it, and its program."""

    cgroup: str
    program: str


Look = Callable[[int], ProcessPlace | None]


class Places:
    """Remembers for some seconds; who is gone keeps its last place while it is asked for."""

    def __init__(self, look: Look | None = None) -> None:
        self._look = look or place_of
        self._known: dict[int, tuple[ProcessPlace, int]] = {}

    def of(self, pid: int, now_ns: int) -> ProcessPlace | None:
        """Give a process's place; None where it was never seen."""
        known = self._known.get(pid)
        if known is not None and now_ns - known[1] <= _FRESH_NS:
            return known[0]
        found = self._look(pid) or (known[0] if known else None)
        if found is None:
            return None
        if len(self._known) >= _MOST:
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
