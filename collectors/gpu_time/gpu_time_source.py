"""GPU time of every process that loads the library: measured in the process, read once a second."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Final

from collectors.binaries.proc_maps import process_key
from collectors.boot_clock import boottime_ns
from collectors.devices.devices_source import GpuUsers
from collectors.interface import SourceUnavailable, UnavailableSource
from collectors.records.activity import GpuCoverage, KernelActivity, Record
from collectors.records.basics import ProcessKey
from collectors.records.gpu_time import TimedProcess
from kernels.signatures import ApplicationClassifier, Signatures
from transport.settings.config import limited

from .found_programs import ProcessTimes
from .listener import (
    MOST_LEARNT,
    MOST_PROCESSES,
    MOST_READ,
    MOST_TAKEN,
    ConnectionRefusal,
    Held,
    Listener,
    Reporter,
    WindowPlan,
    has_room,
    try_out,
)
from .recorded_work import NUMBERED, CounterDeltas, TimedSpans
from .segment import (
    ROWS,
    RecordingState,
    RowKind,
    RowNames,
    SegmentError,
    SegmentUnsettled,
    Snapshot,
)
from .window_estimates import Budget

DEFAULT_SOCKET: Final = Path("/run/pointillist/gpu-time.sock")
"""Where libraries look when no environment variable tells them."""
MOST_SOCKET_PATH: Final = 107


@dataclass(frozen=True, slots=True)
class GpuTimeSection:
    """GPU time of processes that load the library.

    budget_percent  of a process's time that recording may cost, at most
    """

    enabled: bool = False
    socket: Path = DEFAULT_SOCKET
    budget_percent: float = limited(0.5, low=0.04, high=50)

    @property
    def budget(self) -> float:
        return self.budget_percent / 100.0


class LeftOutReason(StrEnum):
    """Why; docs/gpu-time.md has a row for each, and for each `ConnectionRefusal`."""

    MALFORMED = "malformed"
    OCCUPIED = "occupied"
    CUPTI = "cupti"
    LOST = "lost_records"
    BAD_TIMES = "bad_times"


_GROWING: Final = {
    LeftOutReason.OCCUPIED: "occupied",
    LeftOutReason.LOST: "records_lost_cupti",
    LeftOutReason.BAD_TIMES: "bad_times",
}
_MOST: Final = 1 << 40
"""Growth between two looks that no library writes."""


NAME: Final = "gpu_time"
LEASE_MS: Final = 900
"""A library that hears nothing for so long stops recording."""
_RENEW_S: Final = 0.25


_MEASURED: Final = frozenset({RecordingState.OFF, RecordingState.ON})
_MOST_UNSETTLED: Final = 10
_AHEAD_NS: Final = 3600 * 1_000_000_000
"""A state written so far in the future is of no library, or of one in a time namespace."""


@dataclass(slots=True, eq=False)
class _Process:
    """One that reports; `unsettled` drains in a row met it writing, `named` rows are learnt."""

    reporter: Reporter
    key: ProcessKey
    budget: Budget
    plan: WindowPlan
    deltas: CounterDeltas
    spans: TimedSpans
    since_ns: int
    read_ns: int
    looked_ns: int = 0
    unsettled: int = 0
    named: int = 0
    gone: bool = False
    shown: TimedProcess | None = None

    def measured(self) -> bool:
        """Tell whether it records when it is asked to: nothing else has CUPTI, or refuses."""
        header = self.deltas.newest.header
        return header["windows"] > 0 and header["state"] in _MEASURED


def _key(pid: int) -> ProcessKey:
    return process_key("/proc", pid) or ProcessKey(pid, 0)


def _in_turn(processes: Iterable[_Process], now_ns: int) -> Iterator[_Process]:
    """Yield those that this drain reads, who has waited longest first; each is read meanwhile."""
    read = 0
    for process in sorted(processes, key=lambda process: process.looked_ns):
        if read >= MOST_READ:
            return
        process.looked_ns = now_ns
        yield process
        read += ROWS if process.unsettled else len(process.deltas.newest.rows)


def _held(reporter: Reporter, newest: Snapshot) -> Held:
    return Held(reporter.uid, len(newest.rows), newest.header["names_used"])


@contextmanager
def _told(socket: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"GPU time: cannot listen at {socket}: {error.strerror or error}"
        raise SourceUnavailable(reason) from None


class GpuTimeSource:
    """Listens at a socket; a thread takes connections and keeps leases alive."""

    name = NAME

    def __init__(self, settings: GpuTimeSection, gpus: int, users: GpuUsers) -> None:
        self._settings, self._gpus, self._users = settings, gpus, users
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._classifier = ApplicationClassifier(Signatures.load())
        self._names = RowNames()
        self._drained_ns = 0
        self._learnt = 0
        self._left_out: Counter[str] = Counter()
        self._times = ProcessTimes(users, gpus)

    @property
    def left_out(self) -> Mapping[str, int]:
        found = self._left_out.copy()
        if self._listener is not None:
            found.update(self._listener.refused)
        return found

    def probe(self) -> str | None:
        folder = self._settings.socket.parent
        return None if folder.is_dir() else f"GPU time: expected the folder {folder}"

    def start(self) -> None:
        if self._listener is not None:
            return
        with _told(self._settings.socket):
            self._listener = Listener(self._settings.socket)
        self._ending.clear()
        self._thread = threading.Thread(target=self._serve, name="gpu-time", daemon=True)
        self._thread.start()

    def try_out(self) -> list[UnavailableSource]:
        """Listen beside the socket, which a running agent may hold. Raises SourceUnavailable."""
        with _told(self._settings.socket):
            try_out(self._settings.socket)
        return []

    def stop(self) -> None:
        if self._listener is None:
            return
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        self._left_out.update(self._listener.refused)
        self._listener = None
        for process in self._processes:
            process.reporter.close()
        self._processes.clear()
        self._drained_ns = 0
        self._users.timed = frozenset()

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        if self._listener is None or self._thread is None or not self._thread.is_alive():
            raise SourceUnavailable("GPU time: not listening")
        with self._lock:
            processes = list(self._processes)
        for process in processes:
            # A child may have kept its connection.
            process.gone = process.gone or _key(process.key.pid) != process.key
            if process.shown is not None:
                process.shown = process.shown.without_span
        self._learnt, gone = 0, list[_Process]()
        for process in _in_turn(processes, now_boottime_ns):
            last, after = process.gone, self._look(process, now_boottime_ns)
            named = after is None or self._all_named(process, after)
            if after is not None and named:
                yield from self._told(process, after, now_boottime_ns)
            if last and named:
                gone.append(process)
        self._classifier.end_round()
        begun_ns = self._drained_ns
        covered = list(self._coverage(processes, now_boottime_ns))
        yield from covered
        yield self._times.record(
            begun_ns, now_boottime_ns, (process.shown for process in processes if process.shown),
            frozenset(coverage.gpu for coverage in covered), self._listener.refused,
        )  # fmt: skip
        self._forget(gone)
        if not self._listener.reached():
            raise SourceUnavailable(
                f"GPU time: {self._settings.socket} is gone, or another agent's: "
                "programs that begin now do not report here"
            )

    def _serve(self) -> None:
        while not self._ending.wait(_RENEW_S) and self._listener is not None:
            room = MOST_PROCESSES - len(self._processes)
            for reporter in islice(self._listener.accept(room), MOST_TAKEN):
                self._take(reporter)
            with self._lock:
                processes = list(self._processes)
            for process in processes:
                if process.reporter.gone() or not process.reporter.lease(process.plan, LEASE_MS):
                    process.gone = True

    def _take(self, reporter: Reporter) -> None:
        try:
            before = reporter.segment.read()
        except (SegmentError, SegmentUnsettled):
            self._left_out[LeftOutReason.MALFORMED] += 1
            reporter.close()
            return
        key = _key(reporter.pid)
        if not self._has_room(reporter, key, before):
            reporter.close()
            return
        now_ns, budget = boottime_ns(), Budget(self._settings.budget)
        deltas = CounterDeltas(before, now_ns)
        process = _Process(
            reporter, key, budget, budget.follow(before), deltas,
            TimedSpans(deltas, self._names), now_ns, now_ns,
        )  # fmt: skip
        with self._lock:
            for other in self._processes:
                other.gone = other.gone or other.key == process.key
            self._processes.append(process)

    def _has_room(self, reporter: Reporter, key: ProcessKey, newest: Snapshot) -> bool:
        held = (
            _held(process.reporter, process.deltas.newest)
            for process in self._processes
            if process.key != key
        )
        room = has_room(held, _held(reporter, newest))
        if not room and self._listener is not None:
            self._listener.refused[ConnectionRefusal.FULL] += 1
        return room

    def _look(self, process: _Process, now_ns: int) -> Snapshot | None:
        try:
            after = process.reporter.segment.read()
        except SegmentUnsettled:
            process.unsettled += 1
            process.gone = process.gone or process.unsettled >= _MOST_UNSETTLED
            return None
        except SegmentError:
            after = None
        if after is None or after.header["written_ns"] > max(now_ns, boottime_ns()) + _AHEAD_NS:
            self._left_out[LeftOutReason.MALFORMED] += 1
            process.gone = True
            return None
        process.unsettled = 0
        grown = len(after.rows) > len(process.deltas.newest.rows)
        if grown and not self._has_room(process.reporter, process.key, after):
            process.gone = True
            return None
        return after

    def _all_named(self, process: _Process, after: Snapshot) -> bool:
        new = after.names[process.named :]
        room = MOST_LEARNT - self._learnt
        found = self._names.learn_some(new, room)
        self._learnt += min(found, room)
        if found > room:
            return False
        process.named = len(after.names)
        return True

    def _told(self, process: _Process, after: Snapshot, now_ns: int) -> Iterator[KernelActivity]:
        begun_ns, process.read_ns = min(process.read_ns, now_ns), now_ns
        process.plan = process.budget.follow(after)
        self._count_left_out(process.deltas.newest.header, after.header)
        rows = list(process.deltas.follow(after, last=process.gone))
        process.shown = self._shown(process, after, now_ns)
        self._names.learn((row.kind, row.name) for row in rows)
        for row in rows:
            if row.kind in NUMBERED or row.kind is RowKind.NODE:
                called = self._names.called(row.kind, row.name)
                self._classifier.observe(process.key, *called, row.launches)
        application = self._classifier.application(process.key)
        for row in rows:
            yield KernelActivity(
                self._gpu(after, row.device),
                *self._names.called(row.kind, row.name),
                application,
                row.records,
                row.time_ns,
                row.bins,
                row.rate,
                begun_ns,
                now_ns - begun_ns,
            )

    def _count_left_out(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        for reason, field in _GROWING.items():
            if 0 < after[field] - before[field] <= _MOST:
                self._left_out[reason] += after[field] - before[field]
        if after["state"] == RecordingState.REFUSED != before["state"]:
            self._left_out[LeftOutReason.CUPTI] += 1

    def _shown(self, process: _Process, newest: Snapshot, now_ns: int) -> TimedProcess:
        shown = self._times.process(process.key, newest, now_ns)._replace(
            application=self._classifier.application(process.key)
        )
        span = process.spans.take(lambda device: self._gpu(newest, device))
        if span is None:
            return shown
        return shown._replace(
            span_ns=span.span_ns,
            recorded_ns=span.recorded_ns,
            lost=span.lost,
            time=span.time,
            families=span.families,
            kernels=tuple(row.kernel for row in span.rows),
            devices=span.gpus,
        )

    def _gpu(self, snapshot: Snapshot, device: int) -> int:
        uuid = snapshot.uuids[device] if device < len(snapshot.uuids) else ""
        known = self._users.index(uuid) if uuid else None
        return min(known if known is not None else device, max(self._gpus - 1, 0))

    def _coverage(self, processes: Iterable[_Process], now_ns: int) -> Iterator[GpuCoverage]:
        begun_ns, self._drained_ns = self._drained_ns, now_ns
        if not begun_ns:
            return
        pids = {
            process.key.pid
            for process in processes
            if process.measured() and process.since_ns <= begun_ns
        }
        for gpu in range(self._gpus):
            users = self._users.pids(gpu, now_ns)
            if users and users <= pids:
                yield GpuCoverage(NAME, gpu, begun_ns, now_ns - begun_ns)

    def _forget(self, gone: Collection[_Process]) -> None:
        for process in gone:
            process.reporter.close()
            self._classifier.forget(process.key)
        with self._lock:
            self._processes = [process for process in self._processes if process not in gone]
            self._users.timed = frozenset(
                process.key for process in self._processes if process.measured()
            )
