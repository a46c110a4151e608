"""What the GPU-time source says of this host to its own views; local: it never leaves the host.

Kernels are recorded in windows, so that a process's numbers come from window to window: each is an
estimate for the time since the one before, `span_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .estimated_time import NO_TIME, EstimatedTime
from .process import ProcessKey


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
    time       on the GPU
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
    """Time on all GPUs of a process's kernels of one family, or of its copies."""

    family: str
    time: EstimatedTime


class TimedGpu(NamedTuple):
    """What one process's work on one GPU covered, in ns of the span: estimates.

    busy           its work of any kind
    compute        kernels that compute
    copy           copies; `copy_beside` while it computed, too
    collective     collectives; `collective_beside` while it computed, too
    kernels_beside two kernels or more at once
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

    name          as the kernel has it (comm); "" where it cannot be read
    gpus          that it is known to use
    application   class of its kernel mix
    error         CUPTI's code of the call that failed last, 0 for none
    cupti         version of its CUPTI, 0 where it has none yet
    span_ns       since the window before; 0 where none ended since the last record
    recorded_ns   of it
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
    gpus                   how many the host has
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
