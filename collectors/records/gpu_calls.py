"""What the GPU-call source says of this host to its own views; local: it never leaves the host.

A record covers a drain where every call was seen, a governor period where groups took turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite, sqrt
from typing import Final, NamedTuple

from .basics import NORMAL, ProcessKey


class ProbeGroup(StrEnum):
    """Probes that are attached and dropped together, the first to be dropped last."""

    LAUNCH = "launch"
    LAUNCH_RESULT = "launch_result"
    COLLECTIVE = "collective"
    COPY = "copy"
    SYNCHRONISE = "synchronise"
    MEMORY = "memory"
    NAME = "name"
    OTHER = "other"


class Direction(StrEnum):
    """Direction of a copy, by cudaMemcpyKind and hipMemcpyKind 0 to 4."""

    HOST_TO_HOST = "host_to_host"
    HOST_TO_DEVICE = "host_to_device"
    DEVICE_TO_HOST = "device_to_host"
    DEVICE_TO_DEVICE = "device_to_device"
    DEFAULT = "default"


class Unnamed(StrEnum):
    """Why a launch has no name."""

    READING = "reading"
    HANDLE = "handle"
    FILE = "file"
    PROCESS = "process"
    ROOM = "room"


class FileGroup(NamedTuple):
    file: int
    group: ProbeGroup


class CountedCalls(NamedTuple):
    """Calls that were seen, and how many there were.

    value      estimate of all calls; equal to `seen` where everything was seen
    variance   of `value`, of its random error; infinite where nothing was attached
    share      of the time that was seen, 0..1: the sampling rate
    below      how much less, and
    above      how much more there can be beside that: bounds, which add up; infinite: not known
    """

    seen: int
    value: float
    variance: float
    share: float
    below: float = 0.0
    above: float = 0.0

    @classmethod
    def exactly(cls, seen: int) -> CountedCalls:
        return cls(seen, float(seen), 0.0, 1.0)

    @classmethod
    def total(
        cls, counts: Iterable[CountedCalls], share: float, scale: float = 1.0
    ) -> CountedCalls:
        """Add counts up whose random errors have nothing to do with each other."""
        seen, value, variance, _, below, above = map(sum, zip(_NO_CALLS, *counts, strict=True))
        return cls(seen, value * scale, variance * scale**2, share, below * scale, above * scale)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval, where bounds are 0; else it holds the number at least as often."""
        half = NORMAL * sqrt(self.variance)
        return max(self.value - self.below - half, float(self.seen)), self.value + self.above + half

    @property
    def error(self) -> float:
        if self.above > self.value or not isfinite(self.variance):
            return inf
        return NORMAL * sqrt(self.variance) + max(self.below, self.above)


_NO_CALLS: Final = CountedCalls(0, 0.0, 0.0, 0.0)


class ProcessLabels(NamedTuple):
    """Which process: raw, so that it stays here; "" is unknown."""

    name: str
    container: str = ""
    pod: str = ""
    slurm_job: str = ""
    application: str = ""


class KernelCalls(NamedTuple):
    """Launches of one kernel by one process; blocks and threads are sums over those seen."""

    process: ProcessKey
    kernel: str
    family: str
    launches: CountedCalls
    blocks: int
    threads: int


class CopyCalls(NamedTuple):
    """Copies of one process in one direction; `bytes` and log2_bins are of those seen."""

    direction: Direction
    copies: CountedCalls
    bytes: int
    log2_bins: tuple[tuple[int, int], ...]


class CollectiveCalls(NamedTuple):
    """Collectives of one kind on one communicator (0: no room), sums over those seen."""

    communicator: int
    call: str
    calls: CountedCalls
    bytes: int
    duration_ns: int


class ErrorCalls(NamedTuple):
    call: str
    code: int
    failures: int


class WaitCalls(NamedTuple):
    """Calls that wait for the device; `wait_ns` of those seen, summed over threads."""

    calls: CountedCalls
    wait_ns: int


class MemoryState(NamedTuple):
    """Device memory at the span's end; `untracked`: allocations missing in live and peak."""

    live_bytes: int
    peak_bytes: int
    allocations: int
    frees: int
    oldest_age_ns: int
    untracked: int = 0


@dataclass(frozen=True, slots=True)
class ProcessCalls:
    """What one process called; launches are the sum over its kernels, graphs included."""

    process: ProcessKey
    identity: ProcessLabels
    launches: CountedCalls
    waits: WaitCalls
    copies: tuple[CopyCalls, ...] = ()
    memory: MemoryState | None = None
    collectives: tuple[CollectiveCalls, ...] = ()
    errors: tuple[ErrorCalls, ...] = ()

    def wait_share(self, span_ns: int) -> float:
        """Give waiting time over wall time; above 1 where several threads wait."""
        seen_ns = span_ns * self.waits.calls.share
        return self.waits.wait_ns / seen_ns if seen_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class GpuCalls:
    """GPU calls of all processes in a span; `shares`: what was seen of groups, 1 if not named."""

    boottime_ns: int
    span_ns: int
    processes: tuple[ProcessCalls, ...]
    kernels: tuple[KernelCalls, ...]
    shares: Mapping[ProbeGroup, float] = field(default_factory=dict)

    def share(self, group: ProbeGroup) -> float:
        return self.shares.get(group, 1.0)


@dataclass(frozen=True, slots=True)
class GovernorState:
    """What the overhead governor does, once a period.

    budget      share of the wall time of the worst-hit process that probes may take
    duty        share of the period in which the groups in turns are attached
    predicted   share of the worst-hit process that the period will cost, stalls included
    launches    since the state before; `unnamed`: how many of them had no name, by why
    """

    boottime_ns: int
    span_ns: int
    loader: str
    budget: float
    duty: float
    steady: tuple[ProbeGroup, ...]
    in_turns: tuple[ProbeGroup, ...]
    dropped: Mapping[ProbeGroup, str]
    predicted: float
    measured: float | None
    worst: ProcessKey | None
    files: int
    lost: Mapping[str, int] = field(default_factory=dict)
    launches: int = 0
    unnamed: Mapping[Unnamed, int] = field(default_factory=dict)


ProbeRecord = GpuCalls | GovernorState
