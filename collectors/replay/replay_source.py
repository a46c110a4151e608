"""Replay: a PyTorch (Kineto) trace played as this host's GPU activity, in real time or faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from collectors.port import SourceUnavailable
from collectors.records.activity import EVERYTHING_MILLIONTHS, GpuCoverage, KernelActivity
from kernels.families import UNKNOWN_APPLICATION, pipeline_applications
from kernels.launches.kineto import REORDER_EVENTS, TraceError, TraceHeader, gpu_events, read_header

from .replay_groups import LaunchGroup, ReplaySpool, slots

FASTEST = 1_000.0
_SHORTEST_LOOP_NS = 1_000_000
_LONGEST_CATCH_UP_NS = 120 * 10**9


class Classifier(Protocol):
    """Names the family of a kernel (`families.FamilyRules`)."""

    def classify(self, kernel_name: str) -> tuple[str, str]:
        """Return (family, rule)."""
        ...


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
        loop          begin again at the trace's end
        reorder       events held back to sort by time

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
        self.skipped_ns = 0

    def probe(self) -> str | None:
        """Say why the trace cannot be played: no such file, or not readable."""
        try:
            with self._path.open("rb"):
                return None
        except OSError as error:
            return f"trace {self._path}: {error.strerror}"

    def start(self) -> None:
        """Read up to the first slot of GPU events; a trace that fits the reorder buffer whole.

        Raises      SourceUnavailable for a trace that cannot be read
        """
        with _told():
            if self._named is None:
                self._application = _application(read_header(self._path))
        self._spool = ReplaySpool() if self._loop else None
        self._groups = _readable(slots(gpu_events(self._path, self._reorder)))
        self._next = next(self._groups, None)
        if self._next is None:
            with _told():
                raise TraceError(
                    self._path, self._path.stat().st_size, "no GPU event up to the end"
                )
        self._trace_ns = self.loops = 0
        self._started, self._playing = True, False

    def drain(self, now_boottime_ns: int) -> Iterable[KernelActivity | GpuCoverage]:
        """Play up to now. The first call sets the beginning; a suspended host's gap is left out.

        A group is handed out when its first launch is due, up to 100 ms before its last one ends.
        """
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
                self.skipped_ns += now_boottime_ns - at_ns
                self._covered_to_ns = now_boottime_ns
                continue
            played += self._records(self._next, at_ns)
            self._advance(self._next)
        return [*self._cover_to(now_boottime_ns), *played]

    def stop(self) -> None:
        """Forget the trace and its spool."""
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
        """Say that every GPU was watched since the call before."""
        since_ns, self._covered_to_ns = self._covered_to_ns, now_ns
        if now_ns <= since_ns:
            return []
        source = f"replay {self._path.name}"
        gpus = range(self._gpus)
        return [GpuCoverage(source, gpu, since_ns, now_ns - since_ns) for gpu in gpus]

    def _advance(self, played: LaunchGroup) -> None:
        """Step to the next group; at the end begin again, one trace length later."""
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
