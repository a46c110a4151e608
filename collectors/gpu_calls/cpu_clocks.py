"""CPU time of the processes that may call, read without touching them: by their clock ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from collectors.binaries.proc_maps import process_key
from collectors.boot_clock import boottime_ns
from collectors.records.process import ProcessKey

MOST_PROCESSES: Final = 1024
_YOUNG_NS: Final = 5_000_000_000
_SCHEDULED: Final = 2
"""CPUCLOCK_SCHED of a whole process, all its threads: include/linux/posix-timers_types.h."""


def process_cpu_ns(process: ProcessKey) -> int | None:
    """Give the CPU time of a living process; None where it is gone or not in our PID namespace."""
    try:
        return time.clock_gettime_ns(~process.pid << 3 | _SCHEDULED)
    except OSError:
        return None


def is_there(process: ProcessKey) -> bool:
    """Tell whether the process is the one that has the number here."""
    return process_key("/proc", process.pid) == process


class CpuClocks:
    """Growth of the CPU time of the processes that are known.

    known   gives who may call; who was seen calling is added by `note`
    read    gives a process's CPU time, None: it cannot be read
    check   tells whether a process is the one that has the number here: asked once
    """

    def __init__(
        self,
        known: Callable[[], Iterable[ProcessKey]] = tuple,
        read: Callable[[ProcessKey], int | None] = process_cpu_ns,
        check: Callable[[ProcessKey], bool] = is_there,
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._known, self._read, self._check, self._now_ns = known, read, check, now_ns
        self._last: dict[ProcessKey, int | None] = {}

    def note(self, processes: Collection[ProcessKey]) -> None:
        """Follow processes that were seen calling."""
        for process in processes:
            if process.pid:
                self._follow(process)

    def forget(self, process: ProcessKey) -> None:
        """Leave out a process that ended: its number may be another's."""
        self._last.pop(process, None)

    def take(self) -> dict[ProcessKey, int | None]:
        """Give each process's CPU time since the last call.

        None where it is not known: of one that has ended, once; of one that is older than its first
        reading; of one that cannot be read, each time.
        """
        for process in self._known():
            self._follow(process)
        grown: dict[ProcessKey, int | None] = {}
        for process, before in list(self._last.items()):
            now = self._read(process)
            if now is not None:
                self._last[process] = now
                grown[process] = None if before is None else max(now - before, 0)
            else:
                grown[process] = None
                del self._last[process]
        return grown

    def _follow(self, process: ProcessKey) -> None:
        if process in self._last or len(self._last) >= MOST_PROCESSES:
            return
        young = self._now_ns() - process.start_ns < _YOUNG_NS
        if self._check(process):
            self._last[process] = 0 if young else None
