"""What is known of probed processes: name, container, which are left out. Raw: it stays here."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from collectors.binaries.proc_maps import process_key
from collectors.records.gpu_calls import ProcessLabels
from collectors.records.process import ProcessKey

from .process_identity import identify

_MOST_PROCESSES: Final = 4096


class ProcessTable:
    """Identities, read once and kept for a while after a process has ended.

    left_out  patterns (fnmatch) of names of processes whose calls are not counted
    """

    def __init__(self, left_out: Sequence[str] = (), proc: str = "/proc") -> None:
        self._patterns, self._proc = tuple(left_out), proc
        self._known: OrderedDict[ProcessKey, ProcessLabels] = OrderedDict()
        self._own = os.getpid()

    def identity(self, process: ProcessKey) -> ProcessLabels:
        """Give who a process is; empty where it had ended before it was looked at."""
        known = self._known.get(process)
        if known is None:
            known = self._known[process] = self._read(process)
            while len(self._known) > _MOST_PROCESSES:
                self._known.popitem(last=False)
        return known

    def is_left_out(self, process: ProcessKey) -> bool:
        """Tell whether a process's calls are not to be counted: this agent's own, or as told.

        One that ended before its name was read has the name "", which `*` matches.
        """
        if process.pid == self._own:
            return True
        if not self._patterns or not process.pid:
            return False
        name = self.identity(process).name
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def forget(self, process: ProcessKey) -> None:
        """Look anew: it ended, or runs another program now."""
        self._known.pop(process, None)

    def _read(self, process: ProcessKey) -> ProcessLabels:
        name = ""
        with suppress(OSError):
            comm = Path(f"{self._proc}/{process.pid}/comm")
            name = comm.read_text(encoding="utf-8", errors="replace").strip()
        where = identify(process.pid, self._proc)
        if process_key(self._proc, process.pid) != process:
            return ProcessLabels("")  # ended, or its number is used again
        return ProcessLabels(name, where.container, where.pod, where.slurm_job)
