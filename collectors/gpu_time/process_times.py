"""What each process's windows say, for the views of this host: estimates from window to window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from collectors.binaries.proc_maps import ProgramNames, process_key
from collectors.devices.uses import GpuUsers, container_of
from collectors.records.activity import EVERYTHING_MILLIONTHS
from collectors.records.gpu_time import (
    GpuTimes,
    TimedGpu,
    TimedKernel,
    TimedProcess,
    TimingState,
)
from collectors.records.process import ProcessKey

from .found_programs import has_library
from .recorded_work import Work
from .segment import RecordingState, Snapshot

_MOST_NS: Final = 1 << 50
"""Growth between two looks that no GPU reaches: 13 days."""
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
_COVERED: Final = (
    "busy_ns", "compute_ns", "copy_ns", "collective_ns", "copy_beside_compute_ns",
    "collective_beside_compute_ns", "kernels_beside_ns",
)  # fmt: skip
"""Of a device, in the order of `TimedGpu`."""

_RowKey = tuple[int, int, str]
"""Device, kind and name."""


class Progress(NamedTuple):
    """A process's segment at two looks, and until when its time was accounted for at each."""

    before: Snapshot
    after: Snapshot
    since_ns: int
    until_ns: int

    @property
    def span_ns(self) -> int:
        """Give the time since the window before; 0 where none ended."""
        return max(self.until_ns - self.since_ns, 0)

    @property
    def recorded_ns(self) -> int:
        """Give how much of it was recorded."""
        grown = self.after.header["on_ns"] - self.before.header["on_ns"]
        return min(max(grown, 0), self.span_ns)

    def grown(self, *names: str) -> int:
        """Add up what counts of the header grew by."""
        return sum(max(self.after.header[name] - self.before.header[name], 0) for name in names)


class RowExtras(NamedTuple):
    """What a row has beside count and time: growth of bytes, of delays and of their number."""

    bytes: int
    delay_ns: int
    delays: int

    @property
    def mean_delay_ns(self) -> float | None:
        """Give the mean; None where no delay was known."""
        return self.delay_ns / self.delays if self.delays else None


def row_extras(before: Snapshot, after: Snapshot) -> Mapping[_RowKey, RowExtras]:
    """Give the extras of rows that grew; values that no GPU reaches are left out."""
    known = before.rows[: len(after.rows)]
    then = np.zeros(len(after.rows), after.rows.dtype)
    then[: len(known)] = known
    fields = ("bytes", "delay_ns", "delays")
    grown = [after.rows[name] - then[name] for name in fields]
    rows = np.flatnonzero(np.any([(g > 0) & (g <= _MOST_NS) for g in grown], axis=0)).tolist()
    return {
        (int(after.rows[at]["device"]), int(after.rows[at]["kind"]), after.names[at]): RowExtras(
            *(int(g[at]) if g[at] <= _MOST_NS else 0 for g in grown)
        )
        for at in rows
    }


def timed_kernel(gpu: int, called: tuple[str, str], row: Work, extras: RowExtras) -> TimedKernel:
    """Give a row as an estimate of all that ran."""
    scale = EVERYTHING_MILLIONTHS / row.rate
    return TimedKernel(
        gpu, *called, row.records * scale, row.time_ns * scale, None,
        extras.bytes * row.weight * scale, extras.mean_delay_ns,
    )  # fmt: skip


class TimeScale:
    """How much time there was for each recorded ns, by the rows since it was last asked for.

    What work covered of a device is written at a window's end, its rows as they come.
    """

    def __init__(self) -> None:
        self._recorded = self._estimated = 0.0

    def add(self, rows: Iterable[Work]) -> None:
        """Take rows, with the share of them that was recorded."""
        for row in rows:
            self._recorded += row.time_ns / row.weight
            self._estimated += row.time_ns * EVERYTHING_MILLIONTHS / row.rate

    def take(self, progress: Progress) -> float:
        """Give it and begin anew; by the clock alone where no row says."""
        recorded, estimated = self._recorded, self._estimated
        self._recorded = self._estimated = 0.0
        if recorded:
            return estimated / recorded
        return progress.span_ns / progress.recorded_ns if progress.recorded_ns else 1.0


def timed_gpus(
    progress: Progress, scale: TimeScale, gpu_of: Callable[[int], int]
) -> tuple[TimedGpu, ...]:
    """Give what the process's work covered of each GPU: scaled as the time of its rows was."""
    found: dict[int, Any] = {}
    for device, (then, now) in enumerate(
        zip(progress.before.devices, progress.after.devices, strict=True)
    ):
        grown = np.array([int(now[name]) - int(then[name]) for name in _COVERED], dtype=np.float64)
        if grown.any() and (grown >= 0).all() and (grown <= _MOST_NS).all():
            gpu = gpu_of(device)
            found[gpu] = found.get(gpu, 0.0) + grown
    if not found:
        return ()
    factor = scale.take(progress)
    return tuple(
        TimedGpu(gpu, *(values * factor).tolist()) for gpu, values in sorted(found.items())
    )


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

    def process(
        self, key: ProcessKey, newest: Snapshot, progress: Progress, now_ns: int
    ) -> TimedProcess:
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
            span_ns=progress.span_ns,
            recorded_ns=progress.recorded_ns,
            lost=progress.grown("records_lost_cupti", "buffers_refused", "bad_times"),
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
                self._containers[key] = container_of(path.read_text(errors="replace"))
            except OSError:
                self._containers[key] = ""
        return self._containers[key]
