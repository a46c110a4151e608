"""Replay: a PyTorch (Kineto) trace played as this host's GPU activity, in real time or faster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from collectors.interface import SourceUnavailable
from collectors.records.activity import EVERYTHING_MILLIONTHS, GpuCoverage, KernelActivity, log2_bin
from kernels.families import UNKNOWN_APPLICATION, pipeline_applications
from kernels.launches.kineto import (
    NO_DEVICE,
    REORDER_EVENTS,
    GpuEvent,
    TraceError,
    TraceHeader,
    gpu_events,
    read_header,
)

_SLOT_NS = 100_000_000
_MOST_NAMES = 1 << 16
_SPOOL_GROUPS = 8_192
_SPOOLED = np.dtype("<i8, <i8, <i8, <u4, <u4, <i4, i1, i1")
"""First, last and GPU time in ns, launches, name, device, bins of duration and size."""


@dataclass(slots=True)
class LaunchGroup:
    """Launches of a kernel on a device within 100 ms, of one duration bin, one size bin or -1."""

    first_ns: int
    last_ns: int
    gpu_time_ns: int
    count: int
    kernel: str
    device: int
    duration_bin: int
    size_bin: int


def slots(events: Iterator[GpuEvent]) -> Iterator[LaunchGroup]:
    """Gather events into groups, slot by slot, by first launch; one bin each: sums stay exact."""
    slot, gathered = 0, dict[tuple[str, int, int, int], LaunchGroup]()
    origin_ns: int | None = None
    for event in events:
        origin_ns = event.start_ns if origin_ns is None else origin_ns
        start_ns = max(event.start_ns - origin_ns, slot * _SLOT_NS)
        if start_ns // _SLOT_NS > slot:
            yield from sorted(gathered.values(), key=lambda group: group.first_ns)
            gathered.clear()
            slot = start_ns // _SLOT_NS
        _gather(gathered, event, start_ns)
    yield from sorted(gathered.values(), key=lambda group: group.first_ns)


def _gather(
    gathered: dict[tuple[str, int, int, int], LaunchGroup], event: GpuEvent, start_ns: int
) -> None:
    size_bin = -1 if event.copy_bytes is None else log2_bin(event.copy_bytes)
    key = (event.name, event.device, log2_bin(event.duration_ns), size_bin)
    group = gathered.get(key)
    if group is None:
        group = gathered[key] = LaunchGroup(start_ns, start_ns, 0, 0, *key)
    group.last_ns = max(group.last_ns, start_ns + event.duration_ns)
    group.gpu_time_ns += event.duration_ns
    group.count += 1


class ReplaySpool:
    """The groups of the first pass in an unlinked temporary file: later passes parse nothing."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="pointillist-replay-")  # noqa: SIM115 (closed by close)
        self._pending: list[tuple[int, ...]] = []
        self._ids: dict[str, int] = {}
        self._names: list[str] = []

    def append(self, group: LaunchGroup) -> None:
        name = self._name_id(group.kernel)
        times = (group.first_ns, group.last_ns, group.gpu_time_ns)
        bins = (group.duration_bin, group.size_bin)
        self._pending.append((*times, group.count, name, group.device, *bins))
        if len(self._pending) >= _SPOOL_GROUPS:
            self._flush()

    def groups(self) -> Iterator[LaunchGroup]:
        self._flush()
        offset = 0
        while True:
            self._file.seek(offset)
            block = self._file.read(_SPOOL_GROUPS * _SPOOLED.itemsize)
            if not block:
                return
            offset += len(block)
            for first, last, time, count, name, device, length, size in np.frombuffer(
                block, _SPOOLED
            ).tolist():
                yield LaunchGroup(first, last, time, count, self._names[name], device, length, size)

    def close(self) -> None:
        self._file.close()

    def _name_id(self, name: str) -> int:
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


FASTEST = 1_000.0
_SHORTEST_LOOP_NS = 1_000_000
_LONGEST_CATCH_UP_NS = 120 * 10**9


class Classifier(Protocol):
    def classify(self, kernel_name: str) -> tuple[str, str]:
        """Return (family, rule)."""


class ReplaySource:
    """Plays one trace: the first pass parses and spools small groups for those that follow."""

    name = "replay"

    def __init__(
        self,
        path: Path,
        classifier: Classifier,
        gpus: int,
        *,
        every_gpu: bool = False,
        speed: float = 1.0,
        application: str | None = None,
        loop: bool = True,
        reorder: int = REORDER_EVENTS,
    ) -> None:
        """Play nothing yet.

        gpus          GPUs of this host; the i-th device met in the trace plays on GPU i mod gpus
        every_gpu     play each event on all GPUs instead: for a trace of one rank of a larger job
        speed         1: real time; 10: ten times faster, GPU time shrinks with it, bins keep
                      durations
        application   class of the work; None: what the trace's head names, else unknown

        Raises        ValueError
        """
        if gpus < 1:
            raise ValueError(f"a replay needs at least 1 GPU, got {gpus}")
        if not 0 < speed <= FASTEST:
            raise ValueError(f"replay speed: expected 0 < speed <= {FASTEST:g}, got {speed:g}")
        self._path, self._classifier, self._gpus, self._named = path, classifier, gpus, application
        self._every_gpu, self._speed, self._loop, self._reorder = every_gpu, speed, loop, reorder
        self._application = application or UNKNOWN_APPLICATION
        self._spool: ReplaySpool | None = None
        self._groups: Iterator[LaunchGroup] = iter(())
        self._next: LaunchGroup | None = None
        self._devices: dict[int, int] = {}
        self._trace_ns = 0
        self._boot_origin_ns = 0
        self._started = self._playing = False
        self._covered_to_ns = 0
        self.loops = 0

    def probe(self) -> str | None:
        try:
            with self._path.open("rb"):
                return None
        except OSError as error:
            return f"trace {self._path}: {error.strerror}"

    def start(self) -> None:
        """Read up to the first slot of GPU events. Raises SourceUnavailable."""
        with _told():
            if self._named is None:
                self._application = _application(read_header(self._path))
        self._spool = ReplaySpool() if self._loop else None
        events = gpu_events(self._path, self._reorder)
        self._groups = _readable(slots(one for one in events if one.device != NO_DEVICE))
        self._next = next(self._groups, None)
        if self._next is None:
            with _told():
                raise TraceError(
                    self._path, self._path.stat().st_size, "no GPU event up to the end"
                )
        self._trace_ns = self.loops = 0
        self._started, self._playing = True, False

    def drain(self, now_boottime_ns: int) -> Iterable[KernelActivity | GpuCoverage]:
        """Play what is due by now; a suspended host's gap is left out."""
        if not self._started:
            raise SourceUnavailable("replay: not started")
        if not self._playing:
            self._boot_origin_ns = self._covered_to_ns = now_boottime_ns
            self._playing = True
        played: list[KernelActivity | GpuCoverage] = []
        while self._next is not None:
            at_ns = self._boot_origin_ns + self._played_ns(self._next.first_ns)
            if at_ns > now_boottime_ns:
                break
            if now_boottime_ns - at_ns > _LONGEST_CATCH_UP_NS:
                self._boot_origin_ns += now_boottime_ns - at_ns
                self._covered_to_ns = now_boottime_ns
                continue
            played += self._records(self._next, at_ns)
            self._advance(self._next)
        return [*self._cover_to(now_boottime_ns), *played]

    def stop(self) -> None:
        self._next, self._groups, self._started = None, iter(()), False
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _played_ns(self, trace_ns: int) -> int:
        return round(trace_ns / self._speed)

    def _records(self, group: LaunchGroup, at_ns: int) -> Iterator[KernelActivity]:
        family, _ = self._classifier.classify(group.kernel)
        for gpu in self._gpus_of(group.device):
            yield KernelActivity(
                gpu=gpu,
                kernel=group.kernel,
                family=family,
                application=self._application,
                count=group.count,
                gpu_time_ns=self._played_ns(group.gpu_time_ns),
                log2_bins=((group.duration_bin, group.count),),
                sampling_rate_millionths=EVERYTHING_MILLIONTHS,
                boottime_ns=at_ns,
                span_ns=self._played_ns(group.last_ns - group.first_ns),
                copy_log2_bins=() if group.size_bin < 0 else ((group.size_bin, group.count),),
            )

    def _gpus_of(self, device: int) -> Iterable[int]:
        if self._every_gpu:
            return range(self._gpus)
        return (self._devices.setdefault(device, len(self._devices)) % self._gpus,)

    def _cover_to(self, now_ns: int) -> list[GpuCoverage]:
        since_ns, self._covered_to_ns = self._covered_to_ns, now_ns
        if now_ns <= since_ns:
            return []
        source = f"replay {self._path.name}"
        gpus = range(self._gpus)
        return [GpuCoverage(source, gpu, since_ns, now_ns - since_ns) for gpu in gpus]

    def _advance(self, played: LaunchGroup) -> None:
        self._trace_ns = max(self._trace_ns, played.last_ns)
        if self._spool is not None and self.loops == 0:
            self._spool.append(played)
        self._next = next(self._groups, None)
        if self._next is None and self._spool is not None:
            self._boot_origin_ns += max(self._played_ns(self._trace_ns), _SHORTEST_LOOP_NS)
            self.loops += 1
            self._groups = self._spool.groups()
            self._next = next(self._groups)


def _application(header: TraceHeader) -> str:
    named = pipeline_applications().get(header.pipeline_tag or "")
    return header.application or named or UNKNOWN_APPLICATION


@contextmanager
def _told() -> Iterator[None]:
    """Make of a trace that cannot be read the failure of its source."""
    try:
        yield
    except TraceError as error:
        raise SourceUnavailable(str(error)) from error


def _readable(groups: Iterator[LaunchGroup]) -> Iterator[LaunchGroup]:
    with _told():
        yield from groups
