"""Who uses the host's GPUs, for its views: which processes are timed, and of the others why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from collectors.binaries.proc_maps import ProgramNames, process_key
from collectors.devices.uses import GpuUsers, container_of
from collectors.records.gpu_time import (
    GpuTimes,
    TimedProcess,
    TimingState,
)
from collectors.records.process import ProcessKey

from .found_programs import has_library
from .segment import RecordingState, Snapshot

_LOOK_NS: Final = 10_000_000_000
"""Whether a process has loaded the library is looked up so seldom: its maps may be long."""
_MOST_SILENT: Final = 64
"""Processes that report nothing and are named."""
_STATES: Final = {
    RecordingState.OFF: TimingState.MEASURED,
    RecordingState.ON: TimingState.MEASURED,
    RecordingState.REFUSED: TimingState.REFUSED,
    RecordingState.OCCUPIED: TimingState.OCCUPIED,
}


def timing_state(snapshot: Snapshot) -> TimingState:
    """Tell whether a process that reports is measured."""
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
        """Say why it does not report; a library that was just loaded may be on its way."""
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
        """Give a process that reports; its kernels and class are the source's to add."""
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
        """Give the whole host: who reports, and who uses a GPU and does not."""
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
            try:
                path = Path(self._proc, str(key.pid), "cgroup")
                self._containers[key] = container_of(
                    path.read_text(encoding="utf-8", errors="replace")
                )
            except OSError:
                self._containers[key] = ""
        return self._containers[key]
