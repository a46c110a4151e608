"""CPU time, run-queue wait and memory of every process, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .local_rows import clean_name

MOST_PROCESSES: Final = 20_000
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _START, _RSS = 11, 12, 19, 21


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process: CPU and time ready but not running, as percent of one CPU."""

    pid: int
    name: str
    cpu_percent: float
    wait_percent: float
    resident_bytes: int


def process_times(proc: Path) -> dict[tuple[int, int], tuple[str, int, int, int]]:
    """Give (pid, start) -> (name, CPU ns, wait ns, resident bytes); the start tells reuse apart.

    The wait is the main thread's, from schedstat, 0 where the kernel does not keep it.
    """
    found = {}
    try:
        names = [entry.name for entry in os.scandir(proc) if entry.name.isdecimal()]
    except OSError:
        return {}
    for pid in names[:MOST_PROCESSES]:
        read = _read_stat(proc / pid)
        if read is not None:
            start, name, spent_ns, resident = read
            found[int(pid), start] = (name, spent_ns, _waited_ns(proc / pid), resident)
    return found


def _read_stat(folder: Path) -> tuple[int, str, int, int] | None:
    """Read /proc/PID/stat; the name in it may hold spaces, brackets and worse."""
    try:
        text = (folder / "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None  # it ended meanwhile
    head, close, tail = text.rpartition(")")
    fields = tail.split()
    if not close or len(fields) <= _RSS:
        return None
    name = clean_name(head.partition("(")[2])
    spent_ns = (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_NS
    return int(fields[_START]), name, spent_ns, int(fields[_RSS]) * _PAGE


def _waited_ns(folder: Path) -> int:
    try:
        words = (folder / "schedstat").read_bytes().split()
    except OSError:
        return 0
    return int(words[1]) if len(words) >= 2 else 0
