"""Names of the programs that processes run, for people; raw: they stay on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from transport.printable import printable

from .binaries.proc_maps import coarse, process_key
from .records.process import ProcessKey

_MOST: Final = 1024


class ProgramNames:
    """Reads a process's name once, and again after `forget`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._names: dict[tuple[int, int], str] = {}

    def name(self, pid: int, start_ns: int) -> str:
        """Give the name of a process, "" for one that is gone."""
        key = (pid, start_ns)
        if key not in self._names:
            if len(self._names) >= _MOST:
                self._names.clear()
            self._names[key] = self._read(pid)
        return self._names[key]

    def alive(self, pid: int, start_ns: int) -> bool:
        """Tell whether the process is there, and no other of its number."""
        return process_key(str(self._proc), pid) == coarse(ProcessKey(pid, start_ns))

    def _read(self, pid: int) -> str:
        try:
            text = (self._proc / str(pid) / "comm").read_bytes()
        except OSError:
            return ""
        name = text.decode("utf-8", "replace").strip("\n")
        return printable(name)
