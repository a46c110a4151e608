"""GPU programs as /proc shows them: which use a GPU, which have the library, and what it says.

The library's memory is found among the process's descriptors, and read as a stranger's bytes.
"""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from collectors.binaries.proc_maps import ProgramNames, all_pids, content_of, process_key
from collectors.devices.devices_source import GpuUsers, container_of
from collectors.records.basics import ProcessKey
from collectors.records.gpu_time import GpuTimes, TimedProcess, TimingState

from .segment import ProcessSegment, RecordingState, SegmentError, SegmentUnsettled, Snapshot

LIBRARY: Final = "libpointillist-gpu-time."
_MAPPED: Final = f"/{LIBRARY}"
_DRIVERS: Final = ("libcuda.so", "libamdhip64.so")
_MEMORY: Final = "/memfd:pointillist-gpu-time"
_MOST_MAPS_BYTES: Final = 16 << 20
_MOST_DESCRIPTORS: Final = 65_536
_MOST_CGROUP_BYTES: Final = 256 << 10


class GpuProgram(NamedTuple):
    """A process with a GPU's driver loaded, and what its library has written, if it can be read."""

    process: ProcessKey
    name: str
    attached: bool
    state: Snapshot | None = None


class FoundPrograms(NamedTuple):
    """All of the host that may be looked into; `hidden` is how many may not."""

    programs: tuple[GpuProgram, ...]
    hidden: int


def library_file(machine: str | None = None) -> Path:
    """Give where the library for this machine lies, or would lie if there were one."""
    folder = Path(str(files("cupti"))) / "objects"
    return folder / f"{LIBRARY}{machine or platform.machine()}.so"


def has_library(proc: str, pid: int) -> bool | None:
    maps = _maps(proc, pid)
    return None if maps is None else _MAPPED in maps


def gpu_programs(proc: str = "/proc") -> FoundPrograms:
    """Look at every process; a child that has its parent's library uses no GPU."""
    found, hidden, names = [], 0, ProgramNames()
    for pid in sorted(all_pids(proc)):
        maps, key = _maps(proc, pid), process_key(proc, pid)
        if key is None:
            continue
        if maps is None:
            hidden += 1
        elif any(driver in maps for driver in _DRIVERS):
            attached = _MAPPED in maps
            state = _state(proc, pid) if attached else None
            if state is not None and state.header["pid"] != _own_pid(proc, pid):
                continue
            found.append(GpuProgram(key, names.name(*key), attached, state))
    return FoundPrograms(tuple(found), hidden)


def segments(proc: str, pid: int) -> Iterator[ProcessSegment]:
    """Open the library's memory in a process; else nothing. Raises PermissionError."""
    folder = f"{proc}/{pid}/fd"
    for number, name in enumerate(os.listdir(folder)):  # noqa: PTH208 (of /proc, not a tree)
        if number >= _MOST_DESCRIPTORS:
            return
        path = f"{folder}/{name}"
        with suppress(OSError, SegmentError):
            if os.readlink(path).startswith(_MEMORY):  # noqa: PTH115 (no path, but a name)
                yield _opened(path)


def _opened(path: str) -> ProcessSegment:
    """Open a file only once it is known to be one: opening anything else may act or wait."""
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SegmentError("expected a memory file, got another kind")
        descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    try:
        return ProcessSegment(descriptor)
    finally:
        os.close(descriptor)


def _state(proc: str, pid: int) -> Snapshot | None:
    with suppress(OSError, SegmentError, SegmentUnsettled):
        for segment in segments(proc, pid):
            try:
                return segment.read()
            finally:
                segment.close()
    return None


def _own_pid(proc: str, pid: int) -> int:
    with suppress(OSError, ValueError):
        text = Path(proc, str(pid), "status").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return pid  # of a kernel that does not tell
    return 0


def _maps(proc: str, pid: int) -> str | None:
    try:
        with Path(proc, str(pid), "maps").open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_MAPS_BYTES)
    except OSError:
        return None


_LOOK_NS: Final = 10_000_000_000
"""Whether a process has loaded the library is looked up so seldom: its maps may be long."""
_MOST_SILENT: Final = 64
_STATES: Final = {
    RecordingState.OFF: TimingState.MEASURED,
    RecordingState.ON: TimingState.MEASURED,
    RecordingState.REFUSED: TimingState.REFUSED,
    RecordingState.OCCUPIED: TimingState.OCCUPIED,
}


def timing_state(snapshot: Snapshot) -> TimingState:
    state = snapshot.header["state"]
    if state not in tuple(RecordingState):
        return TimingState.UNKNOWN
    found = _STATES[RecordingState(state)]
    if found is TimingState.MEASURED and not snapshot.header["windows"]:
        return TimingState.STARTING
    return found


class _Look(NamedTuple):
    """Whether a process that reports nothing has the library (None: that cannot be seen)."""

    at_ns: int
    loaded: bool | None
    first: bool

    @property
    def state(self) -> TimingState:
        if self.loaded:
            return TimingState.STARTING if self.first else TimingState.SILENT
        return TimingState.UNKNOWN if self.loaded is None else TimingState.NO_LIBRARY


class ProcessTimes:
    """Knows the processes of the host's GPUs by name, also those that report nothing."""

    def __init__(self, users: GpuUsers, gpus: int, proc: str = "/proc") -> None:
        self._users, self._gpus, self._proc = users, gpus, proc
        self._names = ProgramNames()
        self._loaded: dict[ProcessKey, _Look] = {}
        self._containers: dict[ProcessKey, str] = {}

    def process(self, key: ProcessKey, newest: Snapshot, now_ns: int) -> TimedProcess:
        header = newest.header
        return TimedProcess(
            key,
            self._names.name(*key),
            timing_state(newest),
            self._users.gpus(key.pid, now_ns),
            self._container(key),
            error=header["error"],
            cupti=header["cupti_version"],
        )

    def record(
        self,
        begun_ns: int,
        now_ns: int,
        reporting: Iterable[TimedProcess],
        covered: frozenset[int],
        refused: Mapping[Any, int],
    ) -> GpuTimes:
        told = tuple(reporting)
        pids = {process.process.pid for process in told}
        silent = self._silent(pids, now_ns)
        self._containers = {key: name for key, name in self._containers.items() if key.pid in pids}
        return GpuTimes(
            begun_ns or now_ns, now_ns - (begun_ns or now_ns), self._gpus, covered,
            frozenset(gpu for gpu in range(self._gpus) if self._users.told(gpu, now_ns)),
            (*told, *silent),
            tuple(sorted((str(reason), count) for reason, count in refused.items())),
        )  # fmt: skip

    def _silent(self, reporting: set[int], now_ns: int) -> Iterable[TimedProcess]:
        users = {
            pid for gpu in range(self._gpus) for pid in self._users.pids(gpu, now_ns)
        } - reporting
        looks, self._loaded = self._loaded, {}
        for pid in sorted(users)[:_MOST_SILENT]:
            key = process_key(self._proc, pid) or ProcessKey(pid, 0)
            look = looks.get(key)
            if look is None or now_ns - look.at_ns >= _LOOK_NS:
                look = _Look(now_ns, has_library(self._proc, pid), look is None)
            self._loaded[key] = look
            gpus = self._users.gpus(pid, now_ns)
            yield TimedProcess(key, self._names.name(*key), look.state, gpus)

    def _container(self, key: ProcessKey) -> str:
        if key not in self._containers:
            path = f"{self._proc}/{key.pid}/cgroup"
            cgroups = content_of(path, _MOST_CGROUP_BYTES).decode("utf-8", "replace")
            self._containers[key] = container_of(cgroups)
        return self._containers[key]
