"""What is profiled: a process as /proc shows it, and each GPU call with everything known of it."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from collectors.binaries.elf_file import ElfFile
from collectors.binaries.elf_layout import ElfError
from collectors.binaries.mapped_file import open_mapped
from collectors.binaries.proc_maps import Module, Modules, process_key, read_maps
from collectors.gpu_calls.counts import CallSample
from collectors.gpu_calls.meanings import CallKind
from collectors.records.gpu_time import TimingState
from collectors.records.process import ProcessKey

from .gpu_times import GpuStep

_ALL: Final = 0.99
"""Share of the time from which on the rest is a matter of when one looked."""
LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})


class NamedCall(NamedTuple):
    """A sampled call.

    kind       what the table's row says it is
    kernel     name of what was launched, "" for other calls
    on_stream  the call names a stream: 0 then is the default stream
    stack      addresses, the innermost first; empty where none was taken
    """

    sample: CallSample
    kind: CallKind
    kernel: str
    on_stream: bool
    stack: tuple[int, ...]

    @property
    def title(self) -> str:
        """The kernel, or for other calls the call."""
        return self.kernel or self.sample.call


@dataclass(frozen=True, slots=True)
class ProfiledGpuTime:
    """How the process's kernels were timed.

    state      whether they were, and if not, why
    share      of the time, that was recorded; all else is estimated from it
    uuids      of the process's GPUs, by its own numbers
    """

    state: TimingState
    share: float
    uuids: dict[int, str]

    @property
    def said(self) -> str:
        """Say it in a line."""
        if self.state is not TimingState.MEASURED or not self.share:
            return f"GPU time: none ({self.state.value.replace('_', ' ')})"
        if self.share >= _ALL:
            return "GPU time: all of it was recorded"
        return f"GPU time: estimated, {100 * self.share:.2g} % of the time was recorded"


@dataclass(frozen=True, slots=True)
class ProfiledProcess:
    """The profiled process, and when it was looked at.

    begun_ns   CLOCK_BOOTTIME
    unix_ns    the same instant in nanoseconds since 1970
    threads    names by thread id
    modules    what of which files was mapped, the program's first; with the file's build id
    """

    pid: int
    name: str
    begun_ns: int
    unix_ns: int
    ended_ns: int
    threads: dict[int, str]
    modules: tuple[tuple[Module, str], ...]
    lost: dict[str, int]
    gpu_time: ProfiledGpuTime


class ProfileWriter(Protocol):
    """One format: takes calls as they come, and ends with what is known then."""

    def add(self, calls: list[NamedCall]) -> None:
        """Take calls."""
        ...

    def add_time(self, step: GpuStep) -> None:
        """Take what GPUs did in a while."""
        ...

    def finish(self, subject: ProfiledProcess) -> None:
        """Write the rest. Raises OSError."""
        ...


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
