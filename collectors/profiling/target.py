"""The process that is profiled, as /proc shows it."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectors.binaries.elf_bytes import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.mapped_file import open_mapped
from collectors.binaries.proc_maps import Module, Modules, process_key, read_maps
from collectors.records.process import ProcessKey

_MOST_MODULES: Final = 1024
"""Parts of files whose build ids are read."""


class NothingToProfile(Exception):
    """This process cannot be profiled: what was expected, what came, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Target:
    """Holds the process by a descriptor: its number is not mistaken for another's."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """Look at the process. Raises NothingToProfile."""
        self._folder, self._proc, self.pid = Path(proc) / str(pid), proc, pid
        self.modules = Modules()
        self.threads: dict[int, str] = {}
        key = process_key(proc, pid)
        if key is None:
            raise _none_such(pid)
        self.process: ProcessKey = key
        self.name = _line(self._folder / "comm")
        self._program = self._check_rights()
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise _none_such(pid) from None
        except OSError:
            raise NothingToProfile(f"{pid} is a thread", "give the process's number") from None

    def look(self) -> list[Module]:
        """Read what is mapped now, and the threads' names; nothing once the process has ended."""
        modules = list(read_maps(self._proc, self.pid))
        if modules:
            self.modules = Modules(iter(modules))
        with suppress(OSError):
            for thread in (self._folder / "task").iterdir():
                self.threads[int(thread.name)] = _line(thread / "comm")
        return modules

    def alive(self) -> bool:
        """Tell whether a thread of the process is left."""
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        return not waiting.poll(0)

    def modules_with_build_ids(self) -> tuple[tuple[Module, str], ...]:
        """Give what was mapped last, the program first; "" for a file that cannot be read."""
        ordered = sorted(self.modules, key=lambda module: module.path != self._program)
        known: dict[object, str] = {}
        for module in ordered[:_MOST_MODULES]:
            if module.file not in known:
                known[module.file] = self._build_id(module)
        return tuple((module, known[module.file]) for module in ordered[:_MOST_MODULES])

    def close(self) -> None:
        """Let go of the process; a second call does nothing."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _check_rights(self) -> str:
        """Give the program's path where we may look into the process."""
        try:
            with (self._folder / "maps").open("rb") as maps:
                maps.read(1)
            return str((self._folder / "exe").readlink())
        except PermissionError:
            raise NothingToProfile(
                f"may not look into process {self.pid} ({self.name})",
                "run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE",
            ) from None
        except OSError:
            raise _none_such(self.pid) from None

    def _build_id(self, module: Module) -> str:
        opened = open_mapped(
            self._proc, self.pid, module.start, module.end, module.file, module.path
        )
        if opened is None:
            return ""
        try:
            with open(opened.fd, "rb", buffering=0, closefd=False) as raw:
                return ElfFile.read(raw).build_id
        except (ElfError, OSError):
            return ""
        finally:
            opened.close()


def _none_such(pid: int) -> NothingToProfile:
    return NothingToProfile(
        f"there is no process {pid} that runs a program", "pgrep -a NAME finds its number"
    )


def _line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(64).decode("utf-8", "replace").strip()
    except OSError:
        return ""
