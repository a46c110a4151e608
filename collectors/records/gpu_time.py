"""What the GPU-time source says of this host to its own views; local: it never leaves the host.

A process's numbers come from window to window: each is an estimate for the time since the one
before. What adds windows or processes up is `summed`; kernels of one process were recorded in the
same windows, so that their sums have variances of their own, which the source states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Final, NamedTuple

from .basics import ProcessKey, student


class EstimatedTime(NamedTuple):
    """GPU time of some work in a span.

    value_ns   estimate of all of it: so that sums have no bias, that of one window may be below 0
    variance   of it, ns^2; 0 where all was recorded, None where it is not known
    windows    that the variance was learnt from, 0 where nothing had to be learnt
    """

    value_ns: float
    variance: float | None
    windows: int
    span_ns: int

    @property
    def error_ns(self) -> float | None:
        """Half of the 95 % interval; None where there is no interval."""
        if self.variance is None:
            return None
        return sqrt(self.variance) * student(self.windows)


NO_TIME: Final = EstimatedTime(0.0, None, 0, 0)
"""Of a span in which no window ended."""


def summed(parts: Iterable[EstimatedTime]) -> EstimatedTime:
    """Add up estimates of windows or processes; too much that is not known leaves no variance."""
    found = list(parts)
    span_ns = sum(part.span_ns for part in found)
    known = [part for part in found if part.variance is not None]
    learnt = [part for part in known if part.windows]
    learnt_ns = sum(part.span_ns for part in learnt)
    unknown_ns = span_ns - sum(part.span_ns for part in known)
    variance: float | None = sum(part.variance or 0.0 for part in known)
    if unknown_ns and variance is not None:
        fits = learnt_ns >= unknown_ns
        variance = variance * (learnt_ns + unknown_ns) / learnt_ns if fits else None
    windows = max((part.windows for part in learnt), default=0)
    return EstimatedTime(sum(part.value_ns for part in found), variance, windows, span_ns)


class TimingState(StrEnum):
    """Whether a process's kernels are timed, and if not, why."""

    MEASURED = "measured"
    STARTING = "starting"
    """It reports, and no window was recorded yet."""
    OCCUPIED = "occupied"
    """Another profiler has CUPTI: it is left alone."""
    REFUSED = "refused"
    """CUPTI refused; `error` is its code."""
    NO_LIBRARY = "no_library"
    """It uses a GPU and reports nothing: the library is not loaded."""
    SILENT = "silent"
    """The library is loaded, and has not reached this agent."""
    UNKNOWN = "unknown"
    """It uses a GPU and reports nothing that is understood."""


class TimedKernel(NamedTuple):
    """One kernel of a process on one GPU, or copies in one direction.

    launches   estimate of all in the span; none where only earlier windows met it
    bytes      of copies, an estimate of all; 0 for kernels
    delay_ns   mean from submission to start, of those of which it is known; None: of none
    """

    gpu: int
    kernel: str
    family: str
    launches: float
    time: EstimatedTime
    bytes: float = 0.0
    delay_ns: float | None = None


class FamilyTime(NamedTuple):
    family: str
    time: EstimatedTime


class TimedGpu(NamedTuple):
    """What one process's work on one GPU covered, in ns of the span: estimates.

    copy           copies; `copy_beside` while it computed, too
    collective     collectives; `collective_beside` while it computed, too
    """

    gpu: int
    busy: float
    compute: float
    copy: float
    collective: float
    copy_beside: float
    collective_beside: float
    kernels_beside: float


class TimedProcess(NamedTuple):
    """One process of a GPU.

    error         CUPTI's code of the call that failed last, 0 for none
    span_ns       since the window before; 0 where none ended since the last record
    lost          records that CUPTI dropped or that had no times, in the span
    time          of all its work; two kernels at once count twice
    families      the same by family. Its parts were recorded in the same windows, so that
                  intervals of sums are not sums of theirs: each is an estimate of its own
    """

    process: ProcessKey
    name: str
    state: TimingState
    gpus: tuple[int, ...] = ()
    container: str = ""
    application: str = ""
    error: int = 0
    cupti: int = 0
    span_ns: int = 0
    recorded_ns: int = 0
    lost: int = 0
    time: EstimatedTime = NO_TIME
    families: tuple[FamilyTime, ...] = ()
    kernels: tuple[TimedKernel, ...] = ()
    devices: tuple[TimedGpu, ...] = ()

    @property
    def without_span(self) -> TimedProcess:
        """Give it as it is while no window ends."""
        return self._replace(
            span_ns=0, recorded_ns=0, lost=0, time=NO_TIME, families=(), kernels=(), devices=()
        )


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """All processes of the host's GPUs at one drain.

    boottime_ns, span_ns   since the last drain
    covered                those of which every process is measured
    known                  those whose processes the driver tells: of others coverage is not known
    refused                connections that were turned away, by reason, since the source began
    """

    boottime_ns: int
    span_ns: int
    gpus: int
    covered: frozenset[int]
    known: frozenset[int]
    processes: tuple[TimedProcess, ...]
    refused: tuple[tuple[str, int], ...] = ()
