"""Replay: a PyTorch (Kineto) trace played as this host's GPU activity, in real time or faster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from edge_agent.activity import (
    EVERYTHING_MILLIONTHS,
    UNKNOWN_APPLICATION,
    GpuCoverage,
    KernelActivity,
    log2_bin,
)
from edge_agent.families import pipeline_applications

from .kineto import REORDER_EVENTS, GpuEvent, TraceError, TraceHeader, gpu_events, read_header
from .port import SourceUnavailable

FASTEST = 1_000.0
_SLOT_NS = 100_000_000
_SHORTEST_LOOP_NS = 1_000_000
_LONGEST_CATCH_UP_NS = 120 * 10**9
_MOST_NAMES = 1 << 16
_SPOOL_EVENTS = 8_192
_SPOOLED = np.dtype(
    [("start", "<i8"), ("duration", "<i8"), ("bytes", "<i8"), ("name", "<u4"), ("device", "<i4")]
)

_Key = tuple[int, int, str, int, int | None]
"""Slot, GPU, kernel, log2 bin of the duration, log2 bin of a copy's bytes."""


class Classifier(Protocol):
    """Names the family of a kernel (`families.FamilyRules`)."""

    def classify(self, kernel_name: str) -> tuple[str, str]:
        """Return (family, rule)."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a trace is played.

    gpus          GPUs of this host; the i-th device met in the trace plays on GPU i mod gpus
    every_gpu     play each event on all GPUs instead: for a trace of one rank of a larger job
    speed         1: real time; 10: ten times faster, GPU time shrinks with it, bins keep durations
    application   class of the work; None: what the trace's head names, else unknown
    loop          begin again at the trace's end
    reorder       events held back to sort by time
    """

    gpus: int
    every_gpu: bool = False
    speed: float = 1.0
    application: str | None = None
    loop: bool = True
    reorder: int = REORDER_EVENTS

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"a replay needs at least 1 GPU, got {self.gpus}")
        if not 0 < self.speed <= FASTEST:
            raise ValueError(f"replay speed: expected 0 < speed <= {FASTEST:g}, got {self.speed:g}")


class ReplaySource:
    """Plays one trace: the first pass parses and spools 32 bytes an event for those that follow."""

    name = "replay"

    def __init__(self, path: Path, classifier: Classifier, options: ReplayOptions) -> None:
        self._path = path
        self._classifier = classifier
        self._options = options
        self._application = options.application or UNKNOWN_APPLICATION
        self._spool: _Spool | None = None
        self._events: Iterator[GpuEvent] = iter(())
        self._next: GpuEvent | None = None
        self._devices: dict[int, int] = {}
        self._trace_origin_ns = 0
        self._trace_end_ns = 0
        self._boot_origin_ns = 0
        self._playing = False
        self._covered_to_ns = 0
        self.loops = 0
        self.skipped_ns = 0

    def probe(self) -> str | None:
        """Say why the trace cannot be played: no such file, or not readable."""
        try:
            with self._path.open("rb"):
                return None
        except OSError as error:
            return f"trace {self._path}: {error.strerror}"

    def start(self) -> None:
        """Read up to the first GPU event; a trace that fits the reorder buffer is checked whole."""
        if self._options.application is None:
            self._application = _application(read_header(self._path))
        self._spool = _Spool() if self._options.loop else None
        self._events = gpu_events(self._path, self._options.reorder)
        self._next = next(self._events, None)
        if self._next is None:
            raise TraceError(self._path, self._path.stat().st_size, "no GPU event up to the end")
        self._trace_origin_ns = self._trace_end_ns = self._next.start_ns

    def drain(self, now_boottime_ns: int) -> Iterable[KernelActivity | GpuCoverage]:
        """Play up to now. The first call sets the beginning; a suspended host's gap is left out."""
        if not self._playing:
            self._boot_origin_ns = self._covered_to_ns = now_boottime_ns
            self._playing = True
        groups: dict[_Key, _Group] = {}
        while self._next is not None:
            at_ns = self._boottime(self._next)
            if at_ns > now_boottime_ns:
                break
            if now_boottime_ns - at_ns > _LONGEST_CATCH_UP_NS:
                self._boot_origin_ns += now_boottime_ns - at_ns
                self.skipped_ns += now_boottime_ns - at_ns
                self._covered_to_ns = now_boottime_ns
                continue
            self._gather(groups, self._next, at_ns)
            self._advance(self._next)
        covered = self._cover_to(now_boottime_ns)
        return [*covered, *(group.record(self._application) for group in groups.values())]

    def stop(self) -> None:
        """Forget the trace and its spool."""
        self._next, self._events = None, iter(())
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _cover_to(self, now_ns: int) -> list[GpuCoverage]:
        """Say that every GPU was watched since the call before."""
        since_ns, self._covered_to_ns = self._covered_to_ns, now_ns
        if now_ns <= since_ns:
            return []
        gpus = range(self._options.gpus)
        return [GpuCoverage(f"replay {self._path.name}", gpu, since_ns, now_ns - since_ns) for gpu in gpus]

    def _boottime(self, event: GpuEvent) -> int:
        elapsed = max(0, event.start_ns - self._trace_origin_ns)
        return self._boot_origin_ns + round(elapsed / self._options.speed)

    def _gather(self, groups: dict[_Key, _Group], e: GpuEvent, at_ns: int) -> None:
        family, _ = self._classifier.classify(e.name)
        gpu_time_ns = round(e.duration_ns / self._options.speed)
        # One bin each per record, so that time by duration and by size is exact downstream.
        duration_bin = log2_bin(e.duration_ns)
        size_bin = None if e.copy_bytes is None else log2_bin(e.copy_bytes)
        for gpu in self._gpus_of(e.device):
            key = (at_ns // _SLOT_NS, gpu, e.name, duration_bin, size_bin)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(key, family, at_ns)
            group.add(at_ns, gpu_time_ns)

    def _gpus_of(self, device: int) -> Iterable[int]:
        if self._options.every_gpu:
            return range(self._options.gpus)
        return (self._devices.setdefault(device, len(self._devices)) % self._options.gpus,)

    def _advance(self, played: GpuEvent) -> None:
        """Step to the next event; at the end begin again, one trace length later."""
        self._trace_end_ns = max(self._trace_end_ns, played.start_ns + played.duration_ns)
        if self._spool is not None and self.loops == 0:
            self._spool.append(played)
        self._next = next(self._events, None)
        if self._next is None and self._spool is not None:
            period_ns = round((self._trace_end_ns - self._trace_origin_ns) / self._options.speed)
            self._boot_origin_ns += max(period_ns, _SHORTEST_LOOP_NS)
            self.loops += 1
            self._events = self._spool.events()
            self._next = next(self._events)


def _application(header: TraceHeader) -> str:
    named = pipeline_applications().get(header.pipeline_tag or "")
    return header.application or named or UNKNOWN_APPLICATION


class _Group:
    """Launches of one kernel, duration bin and copy size on one GPU within one slot."""

    def __init__(self, key: _Key, family: str, at_ns: int) -> None:
        self.key, self.family = key, family
        self.first_ns = self.last_ns = at_ns
        self.count = self.ns = 0

    def add(self, at_ns: int, gpu_time_ns: int) -> None:
        self.last_ns = max(self.last_ns, at_ns + gpu_time_ns)
        self.count += 1
        self.ns += gpu_time_ns

    def record(self, application: str) -> KernelActivity:
        _, gpu, kernel, duration_bin, size_bin = self.key
        return KernelActivity(
            gpu=gpu,
            kernel=kernel,
            family=self.family,
            application=application,
            count=self.count,
            gpu_time_ns=self.ns,
            log2_bins=((duration_bin, self.count),),
            sampling_rate_millionths=EVERYTHING_MILLIONTHS,
            boottime_ns=self.first_ns,
            span_ns=self.last_ns - self.first_ns,
            copy_log2_bins=() if size_bin is None else ((size_bin, self.count),),
        )


class _Spool:
    """The events of the first pass in an unlinked temporary file: later passes parse nothing."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="pointillist-replay-")  # noqa: SIM115 (closed by close)
        self._pending: list[tuple[int, int, int, int, int]] = []
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def append(self, event: GpuEvent) -> None:
        copied = -1 if event.copy_bytes is None else event.copy_bytes
        name = self._name_id(event.name)
        self._pending.append((event.start_ns, event.duration_ns, copied, name, event.device))
        if len(self._pending) >= _SPOOL_EVENTS:
            self._flush()

    def events(self) -> Iterator[GpuEvent]:
        self._flush()
        offset = 0
        while True:
            self._file.seek(offset)
            block = self._file.read(_SPOOL_EVENTS * _SPOOLED.itemsize)
            if not block:
                return
            offset += len(block)
            for start, duration, copied, name, device in np.frombuffer(block, _SPOOLED).tolist():
                yield GpuEvent(
                    start, duration, device, self._names[name], None if copied < 0 else copied
                )

    def close(self) -> None:
        self._file.close()

    def _name_id(self, name: str) -> int:
        """Number a name; a trace of endless new names folds the rest into one."""
        known = self._ids.get(name)
        if known is not None:
            return known
        if len(self._names) >= _MOST_NAMES:
            return self._name_id(self._names[-1])
        self._names.append(name if len(self._names) < _MOST_NAMES - 1 else "(more kernels)")
        self._ids[self._names[-1]] = len(self._names) - 1
        return len(self._names) - 1

    def _flush(self) -> None:
        if not self._pending:
            return
        try:
            self._file.seek(0, 2)
            self._file.write(np.array(self._pending, dtype=_SPOOLED).tobytes())
            self._file.flush()
        except OSError as error:
            raise SourceUnavailable(f"replay spool: {error.strerror or error}") from None
        self._pending.clear()
