"""GPU time of the profiled process, from the memory of the library in it, added up by kernel.

It records while somebody leases: the running agent, in windows under its budget; where none
listens, the profile itself, all the time.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from collectors.gpu_time.found_programs import has_library, segments, timing_state
from collectors.gpu_time.gpu_time_source import DEFAULT_SOCKET
from collectors.gpu_time.listener import Listener, Reporter, WindowPlan
from collectors.gpu_time.recorded_work import CounterDeltas, TimedRow, TimedSpans
from collectors.gpu_time.segment import ProcessSegment, RowNames, SegmentError, SegmentUnsettled
from collectors.records.gpu_time import TimedGpu, TimingState

LOOK_NS: Final = 1_000_000_000
LEASE_MS: Final = 900
_RENEW_S: Final = 0.2
ALWAYS: Final = WindowPlan(1_000, 1_000)
NEVER: Final = WindowPlan(0, 1_000)
"""What processes are asked that come to the profile's socket and are not profiled."""
_SOCKET: Final = b"POINTILLIST_GPU_TIME_SOCKET="
_MOST_ENVIRONMENT: Final = 1 << 20


class GpuStep(NamedTuple):
    begun_ns: int
    ended_ns: int
    recorded_ns: int
    kernels: tuple[TimedRow, ...]
    gpus: tuple[TimedGpu, ...]


class ProfiledTimes:
    def __init__(self, pid: int, path: Path = DEFAULT_SOCKET, proc: str = "/proc") -> None:
        """Follow a process that reports at `path`; it could name any other path of the host."""
        self._pid, self._path, self._proc = pid, path, proc
        self._names = RowNames()
        self._segment: ProcessSegment | None = None
        self._deltas: CounterDeltas | None = None
        self._spans: TimedSpans | None = None
        self._listener: Listener | None = None
        self._reporters: list[Reporter] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_ns = 0
        self.spent_ns = self.recorded_ns = 0
        self.state = TimingState.NO_LIBRARY
        self.uuids: dict[int, str] = {}

    def start(self, now_ns: int) -> None:
        """Begin: what was recorded before is not the profile's."""
        self._listen()
        self._find(now_ns)

    def poll(self, now_ns: int, last: bool = False) -> GpuStep | None:
        if not last and now_ns - self._look_ns < LOOK_NS:
            return None
        self._look_ns = now_ns
        if self._deltas is None or self._spans is None:
            self._find(now_ns)
            return None
        return self._step(self._deltas, self._spans, last)

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        for reporter in self._reporters:
            reporter.close()
        self._reporters.clear()
        if self._listener is not None:
            self._listener.close()
        if self._segment is not None:
            self._segment.close()
        self._listener = self._segment = self._deltas = self._spans = None

    def _find(self, now_ns: int) -> None:
        with suppress(OSError):
            for segment in segments(self._proc, self._pid):
                with suppress(SegmentError, SegmentUnsettled):
                    before = segment.read()
                    self._segment, self._deltas = segment, CounterDeltas(before, now_ns)
                    self._spans = TimedSpans(self._deltas, self._names, graphs_apart=True)
                    self.state = timing_state(before)
                    return
                segment.close()
        if has_library(self._proc, self._pid):
            self.state = TimingState.SILENT

    def _step(self, deltas: CounterDeltas, spans: TimedSpans, last: bool) -> GpuStep | None:
        try:
            assert self._segment is not None  # noqa: S101 (found together with its growth)
            after = self._segment.read()
        except (SegmentError, SegmentUnsettled):
            return None
        for _ in deltas.follow(after, last=last):
            pass  # windows alone are told
        self.state = timing_state(after)
        self.uuids |= {device: uuid for device, uuid in enumerate(after.uuids) if uuid}
        span = spans.take(lambda device: device)
        if span is None:
            return None
        self.spent_ns += span.span_ns
        self.recorded_ns += span.recorded_ns
        kernels, ended_ns = span.rows, span.begun_ns + span.span_ns
        return GpuStep(span.begun_ns, ended_ns, span.recorded_ns, kernels, span.gpus)

    def _listen(self) -> None:
        with suppress(OSError):
            if self._reports_at() == self._path and _is_free(self._path):
                self._listener = Listener(self._path)
                self._thread = threading.Thread(
                    target=self._serve, args=(self._listener,), daemon=True
                )
                self._thread.start()

    def _serve(self, listener: Listener) -> None:
        """Keep leases alive; a thread, because writing a profile can take longer than a lease."""
        while not self._ending.wait(_RENEW_S):
            self._reporters += listener.accept()
            for reporter in list(self._reporters):
                plan = ALWAYS if reporter.pid == self._pid else NEVER
                if reporter.gone() or not reporter.lease(plan, LEASE_MS):
                    reporter.close()
                    self._reporters.remove(reporter)

    def _reports_at(self) -> Path:
        with Path(self._proc, str(self._pid), "environ").open("rb") as file:
            for entry in file.read(_MOST_ENVIRONMENT).split(b"\0"):
                if entry.startswith(_SOCKET):
                    return Path(os.fsdecode(entry.removeprefix(_SOCKET)))
        return DEFAULT_SOCKET


def _is_free(path: Path) -> bool:
    """Tell whether nobody listens there, and nothing else than a socket lies there."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    with asking:
        try:
            asking.connect(str(path))
        except OSError as error:
            left = error.errno == errno.ECONNREFUSED and path.is_socket()
            return left or error.errno == errno.ENOENT
    return False
