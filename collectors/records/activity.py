"""What a source hands to the windows: kernel activity and observations, in CLOCK_BOOTTIME."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from .gpu_calls import ProbeRecord
from .gpu_time import GpuTimes

LOG2_BINS = 64
"""Bins of a log2 histogram: bin i counts values in [2**i, 2**(i+1)), bin 0 also counts 0."""

EVERYTHING_MILLIONTHS = 1_000_000


def log2_bin(value: int) -> int:
    """Index of the log2 bin of a non-negative value (nanoseconds or bytes)."""
    if value < 0:
        raise ValueError(f"a histogram value is at least 0, got {value}")
    return min(max(value, 1).bit_length() - 1, LOG2_BINS - 1)


def scale(parts: Iterable[int], numerator: int, denominator: int) -> list[int]:
    """Scale parts, rounding every partial sum down: the result sums to floor(sum * n / d)."""
    scaled, running, before = [], 0, 0
    for part in parts:
        running += part
        after = running * numerator // denominator
        scaled.append(after - before)
        before = after
    return scaled


@dataclass(frozen=True, slots=True)
class KernelActivity:
    """Launches of one kernel on one GPU, aggregated by a source over a short span.

    gpu_time_ns                time on the GPU, or None where the source sees launches only
    log2_bins                  (bin, count) pairs of durations in ns, bins ascending
    sampling_rate_millionths   share of all launches that the source saw, 1..1_000_000
    span_ns                    launches lie in [boottime_ns, boottime_ns + span_ns]
    """

    gpu: int
    kernel: str
    family: str
    application: str
    count: int
    gpu_time_ns: int | None
    log2_bins: tuple[tuple[int, int], ...]
    sampling_rate_millionths: int
    boottime_ns: int
    span_ns: int = 0
    copy_log2_bins: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuCoverage:
    """A source watched a GPU for a while: time without activity in it was idle, not unmeasured."""

    source: str
    gpu: int
    boottime_ns: int
    span_ns: int


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """A source worked for a while: what it did not tell of in it did not happen."""

    source: str
    boottime_ns: int
    span_ns: int


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured value for one cell of a section.

    value         in the section's base units: an amount for a mix, a sample for a histogram or
                  mean, any non-zero value for an indicator
    """

    section: str
    cell: str
    value: int
    boottime_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class HostTicks:
    """This host's counters many times a second; local: no section is filled from it.

    boottime_ns    int64[n], CLOCK_BOOTTIME of each snapshot, ascending
    totals         uint64[n, k], since the source began; a column may step back by what was read
                   while it moved, never for long
    lost           snapshots that were overwritten before they were read, since the last record
    """

    metrics: tuple[str, ...]
    boottime_ns: NDArray[np.int64]
    totals: NDArray[np.uint64]
    missed: int
    lost: int


@dataclass(frozen=True, slots=True, eq=False)
class HostTable:
    """What grew in a span, by cgroup, CPU, device, peer, ...; local: it never leaves the host.

    name           what the rows are: `cgroup`, `cpu`, `device`, ...
    values         int64[rows, columns]
    """

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[np.int64]
    boottime_ns: int
    span_ns: int

    def column(self, name: str) -> dict[str, int]:
        """Give one column by row. Raises ValueError for a column that is not there."""
        values = self.values[:, self.columns.index(name)]
        return dict(zip(self.rows, values.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that happened to a device or interface of this host; it never leaves the host."""

    name: str
    key: str
    detail: str
    boottime_ns: int


class StepSource(StrEnum):
    """What a step time was taken from, the most exact first."""

    UPROBE = "uprobe"
    LAUNCHES = "launches"
    SYNCHRONISATIONS = "synchronisations"
    COLLECTIVES = "collectives"
    RHYTHM = "rhythm"


@dataclass(frozen=True, slots=True, eq=False)
class MarkedProcess:
    """A process whose threads leave marks; `cgroup` as in the table, "" before its first step."""

    pid: int
    start_ns: int
    cgroup: str
    program: str


@dataclass(frozen=True, slots=True, eq=False)
class StepMarks(MarkedProcess):
    """Steps of one process that ended since the last drain; local: they never leave the host.

    ended_ns        int64[n], CLOCK_BOOTTIME, ascending
    open_since_ns   when the latest step that has not ended began; None where none has
    """

    probe: str
    source: StepSource
    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    lost: int
    open_since_ns: int | None


class RhythmKind(IntEnum):
    """What a thread did at a mark of its rhythm."""

    WAKE = 0
    BLOCK = 1
    SEND = 2
    RECEIVE = 3
    SYNCHRONISE = 4
    COLLECTIVE = 5


@dataclass(frozen=True, slots=True, eq=False)
class RhythmMarks(MarkedProcess):
    """What one process's threads did since the last drain; local: they never leave the host.

    at_ns           int64[n], CLOCK_BOOTTIME, ascending
    kind            uint8[n], RhythmKind: back from a voluntary sleep (WAKE) or from an
                    uninterruptible one (BLOCK), sent or received on a socket, back from a
                    synchronisation or collective of a GPU
    value           int64[n]: nanoseconds away (WAKE, BLOCK, SYNCHRONISE, COLLECTIVE), else bytes
    socket          int64[n]: which one, SEND and RECEIVE; else 0
    round_trip_us   int64[n]: newest round trip on a TCP connection, SEND and RECEIVE; else 0
    beyond          by kind, marks that were only counted: too many a second, or no room
    """

    at_ns: NDArray[np.int64]
    kind: NDArray[np.uint8]
    thread: NDArray[np.int64]
    value: NDArray[np.int64]
    socket: NDArray[np.int64]
    round_trip_us: NDArray[np.int64]
    beyond: tuple[int, ...]


HostRecord = HostTicks | HostTable | HostEvent | StepMarks | RhythmMarks | GpuTimes

Record = KernelActivity | GpuCoverage | SourceCoverage | Observation | HostRecord | ProbeRecord
