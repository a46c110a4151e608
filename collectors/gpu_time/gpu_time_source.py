"""GPU time of every process that loads the library: measured in the process, read once a second."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from collectors.binaries.demangle import Demangler
from collectors.binaries.proc_maps import process_key
from collectors.devices.uses import GpuUsers
from collectors.port import SourceUnavailable
from collectors.records.activity import GpuCoverage, KernelActivity, Record
from collectors.records.process import ProcessKey
from kernels.application_classifier import ApplicationClassifier
from kernels.families import FamilyRules
from kernels.signatures import Signatures

from .budget import Budget
from .growth import NUMBERED, Work, work
from .listener import Listener, Plan, Reporter
from .segment import RowKind, SegmentError, Snapshot
from .settings import GpuTimeSection

NAME: Final = "gpu_time"
LEASE_MS: Final = 900
"""A library that hears nothing for so long stops recording."""
_RENEW_S: Final = 0.25
_NAMES: Final = {
    RowKind.MEMSET: ("Memset", "memset"),
    RowKind.GRAPH: ("(graph)", "other"),
    RowKind.OTHER: ("(other)", "other"),
}


@dataclass(slots=True)
class _Process:
    reporter: Reporter
    key: ProcessKey
    budget: Budget
    plan: Plan
    before: Snapshot | None = None
    gone: bool = False
    since_ns: int = 0


class GpuTimeSource:
    """Listens at a socket; a thread takes connections and keeps leases alive."""

    name = NAME

    def __init__(self, settings: GpuTimeSection, gpus: int, users: GpuUsers) -> None:
        """Take the number of GPUs, and what the driver tells of them; tells it who is timed."""
        self._settings, self._gpus, self._users = settings, gpus, users
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._rules = FamilyRules.load()
        self._classifier = ApplicationClassifier(Signatures.load(), in_rounds=True)
        self._demangler = Demangler()
        self._named: dict[str, tuple[str, str]] = {}
        self._drained_ns = 0

    def probe(self) -> str | None:
        """Say why nobody could report."""
        folder = self._settings.socket.parent
        return None if folder.is_dir() else f"GPU time: expected the folder {folder}"

    def start(self) -> None:
        """Listen. Raises SourceUnavailable."""
        if self._listener is not None:
            return
        try:
            self._listener = Listener(self._settings.socket)
        except OSError as error:
            raise SourceUnavailable(
                f"GPU time: cannot listen at {self._settings.socket}: {error.strerror}"
            ) from None
        self._ending.clear()
        self._thread = threading.Thread(target=self._serve, name="gpu-time", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let every process go, which stops its recording."""
        if self._listener is None:
            return
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        self._listener.close()
        self._listener = None
        for process in self._processes:
            process.reporter.close()
        self._processes.clear()
        self._drained_ns = 0
        self._users.timed = frozenset()

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        """Yield what was recorded since the last call. Raises SourceUnavailable."""
        if self._listener is None or self._thread is None or not self._thread.is_alive():
            raise SourceUnavailable("GPU time: not listening")
        with self._lock:
            processes = list(self._processes)
        for process in processes:
            yield from self._read(process, now_boottime_ns)
        self._classifier.end_round()
        yield from self._coverage(processes, now_boottime_ns)
        self._forget(processes)

    def _serve(self) -> None:
        """Take connections and renew leases until the end."""
        while not self._ending.wait(_RENEW_S) and self._listener is not None:
            for reporter in self._listener.accept():
                key = process_key("/proc", reporter.pid) or ProcessKey(reporter.pid, 0)
                budget = Budget(self._settings.budget)
                with self._lock:
                    self._processes.append(_Process(reporter, key, budget, budget.plan()))
            with self._lock:
                processes = list(self._processes)
            for process in processes:
                if process.reporter.gone() or not process.reporter.lease(process.plan, LEASE_MS):
                    process.gone = True

    def _read(self, process: _Process, now_ns: int) -> Iterator[KernelActivity]:
        """Yield a process's work; one that writes what no library writes is let go."""
        try:
            after = process.reporter.segment.read()
        except SegmentError:
            process.gone = True
            return
        before, since_ns = process.before, process.since_ns
        process.before, process.since_ns = after, now_ns
        process.plan = process.budget.follow(after)
        begun_ns = since_ns or now_ns
        rows = list(work(before, after))
        self._name(rows)
        for row in rows:
            yield self._activity(process.key, after, row, begun_ns, now_ns - begun_ns)

    def _activity(
        self, key: ProcessKey, after: Snapshot, row: Work, begun_ns: int, span_ns: int
    ) -> KernelActivity:
        name, family = self._called(row)
        if row.kind in NUMBERED or row.kind is RowKind.NODE:
            scaled = round(row.records * 1_000_000 / row.rate)
            self._classifier.observe(key, name, family, scaled, row.time_ns)
        return KernelActivity(
            self._gpu(after, row.device),
            name,
            family,
            self._classifier.application(key),
            row.records,
            row.time_ns,
            row.bins,
            row.rate,
            begun_ns,
            span_ns,
        )

    def _gpu(self, snapshot: Snapshot, device: int) -> int:
        """Give the host's number of a process's device."""
        uuid = snapshot.uuids[device] if device < len(snapshot.uuids) else ""
        known = self._users.index(uuid) if uuid else None
        return min(known if known is not None else device, max(self._gpus - 1, 0))

    def _called(self, row: Work) -> tuple[str, str]:
        """Give a row's name and family."""
        if row.kind is RowKind.COPY:
            return f"Memcpy {row.name.removeprefix('copy').strip()}".strip(), "memcpy"
        return _NAMES.get(row.kind) or self._named[row.name]

    def _name(self, rows: Iterable[Work]) -> None:
        """Learn names that are new."""
        kernels = {row.name for row in rows if row.kind in (RowKind.KERNEL, RowKind.NODE)}
        new = sorted(kernels - self._named.keys())
        for mangled, name in zip(new, self._demangler.demangle(new), strict=True):
            self._named[mangled] = name, self._rules.classify(name)[0]

    def _coverage(self, processes: Iterable[_Process], now_ns: int) -> Iterator[GpuCoverage]:
        """Yield the GPUs all of whose processes have reported since the last drain."""
        begun_ns, self._drained_ns = self._drained_ns, now_ns
        pids = {process.key.pid for process in processes if process.before is not None}
        if not begun_ns:
            return
        for gpu in range(self._gpus):
            users = self._users.pids(gpu, now_ns)
            if users and users <= pids:
                yield GpuCoverage(NAME, gpu, begun_ns, now_ns - begun_ns)

    def _forget(self, processes: Iterable[_Process]) -> None:
        """Drop who is gone, now that the last of it was read; tell who is timed."""
        gone = [process for process in processes if process.gone]
        for process in gone:
            process.reporter.close()
            self._classifier.forget(process.key)
        with self._lock:
            self._processes = [process for process in self._processes if process not in gone]
            self._users.timed = frozenset(process.key for process in self._processes)
