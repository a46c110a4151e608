"""What a view of a host consists of: lines for terminal, page and JSON, all numbers ready, names
clean. Rates are a second of the time that a line's rows stand for, `seconds`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from math import isfinite
from typing import Any, Final, NamedTuple

from collectors.records.gpu_calls import CountedCalls
from collectors.records.gpu_time import EstimatedTime


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """A number a second with its 95 % interval, None where it is not known; error: half of it.
    share       of the time that was seen
    """

    value: float
    low: float | None = None
    high: float | None = None
    error: float | None = None
    share: float = 1.0

    @classmethod
    def of_calls(cls, counted: CountedCalls, seconds: float) -> RateEstimate:
        """Give calls a second; what is infinite is not known."""
        low, high, error = [
            end / seconds if isfinite(end) else None for end in (*counted.interval, counted.error)
        ]
        return cls(counted.value / seconds, low, high, error, counted.share)

    @classmethod
    def of_time(cls, time: EstimatedTime, seconds: float) -> RateEstimate:
        """Give GPU time in ms a second; estimates may be below 0, so that sums are right."""
        error = None if time.error_ns is None else time.error_ns / 1e6 / seconds
        return cls.around(time.value_ns / 1e6 / seconds, error)

    @classmethod
    def around(cls, value: float, error: float | None) -> RateEstimate:
        """Give what is as far below as above; no end is below 0."""
        if error is None:
            return cls(value)
        return cls(value, max(value - error, 0.0), max(value + error, 0.0), error)


class LevelLine(NamedTuple):
    """A metric: how many rows, their mean, least, most and last, and how old the last is."""

    source: str
    name: str
    key: str
    unit: str
    rows: int
    mean: float
    least: float
    most: float
    last: float
    age_s: float


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A kernel of a process (pid 0: not told): timed (`gpu_ms` a second), or seen as launched.
    mean_us    of a timed launch; `delay_us` from its submission to its start
    """

    pid: int
    process: str
    kernel: str
    family: str
    gpu: int | None
    seconds: float
    launches: RateEstimate
    gpu_ms: RateEstimate | None = None
    mean_us: float | None = None
    delay_us: float | None = None
    bytes_per_s: float = 0.0
    threads_per_launch: float = 0.0


@dataclass(frozen=True, slots=True)
class CopyLine:
    """Copies in one direction; `log2_bins` of those seen."""

    direction: str
    copies: RateEstimate
    bytes_per_s: float
    log2_bins: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CollectiveLine:
    """Collectives of one kind of a process on one communicator."""

    pid: int
    process: str
    communicator: str
    call: str
    seconds: float
    calls: RateEstimate
    bytes_per_s: float
    mean_us: float


@dataclass(frozen=True, slots=True)
class TimedLine:
    """How a process's kernels are timed; recorded_share of the time, None without a window."""

    state: str
    said: str
    cupti: str
    gpus: tuple[int, ...]
    launches_per_s: float
    recorded_share: float | None
    lost: int


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A process: what it called where that was seen (`launches`), and how it is timed."""

    pid: int
    name: str
    application: str
    container: str
    pod: str
    slurm_job: str
    seconds: float
    launches: RateEstimate | None = None
    wait_share: float | None = None
    memory: Mapping[str, int] | None = None
    copies: tuple[CopyLine, ...] = ()
    failures: int = 0
    errors: tuple[Mapping[str, Any], ...] = ()
    gpu_ms: RateEstimate | None = None
    timed: TimedLine | None = None


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """A kernel family: launches seen and GPU time in a second, and its share of all GPU time."""

    family: str
    launches_per_s: float
    gpu_ms: RateEstimate | None
    share: float | None


@dataclass(frozen=True, slots=True)
class GpuLine:
    """What timed processes covered of a GPU, as shares of the time, and who is not timed.
    covered, known   whether all is measured, all users are told; None: of a time that has passed
    """

    gpu: int
    covered: bool | None
    known: bool | None
    processes: int
    not_measured: tuple[Mapping[str, Any], ...]
    busy: float
    compute: float
    copy: float
    collective: float
    copy_beside: float
    collective_beside: float
    kernels_beside: float


@dataclass(frozen=True, slots=True)
class FamilyStep:
    """GPU time in one step of time; shares are of the time of all GPUs."""

    unix_ns: int
    span_ns: int
    covered_share: float
    busy_share: float
    family_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HostView:
    """What is known of a host in a time, or now.

    span_s     of the rows of GPU work, at most as long as was asked for
    left_out   lines that found no place, by kind
    agent, models, gpu_use_not_told, governor, reports, findings   of now alone
    refused    connections of programs that were turned away, by reason; None: no source times them
    """

    unix_ns: int = 0
    span_s: float = 0.0
    live: bool = False
    agent: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    gpu_use_not_told: Mapping[str, Sequence[str]] = field(default_factory=dict)
    levels: tuple[LevelLine, ...] = ()
    gpus: tuple[GpuLine, ...] = ()
    kernels: tuple[KernelLine, ...] = ()
    processes: tuple[ProcessLine, ...] = ()
    families: tuple[FamilyLine, ...] = ()
    copies: tuple[CopyLine, ...] = ()
    collectives: tuple[CollectiveLine, ...] = ()
    steps: tuple[FamilyStep, ...] = ()
    governor: Mapping[str, Any] | None = None
    findings: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    reports: tuple[Mapping[str, Any], ...] = ()
    refused: Mapping[str, int] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


_PAGE: Final = 100


def pieces(view: HostView) -> Iterator[str]:
    """Give a view as JSON in pieces: of thousands of metrics a page at a time is at hand."""
    rest = {name: part for name, part in _members(view).items() if name != "levels"}
    yield f'{_encoded(rest)[:-1]}, "levels": ['
    for begin in range(0, len(view.levels), _PAGE):
        lines = [line._asdict() for line in view.levels[begin : begin + _PAGE]]
        yield f"{', ' if begin else ''}{_encoded(lines)[1:-1]}"
    yield "]}"


def document(view: HostView) -> dict[str, Any]:
    """Give a view as JSON has it."""
    found: dict[str, Any] = json.loads("".join(pieces(view)))
    return found


def _members(line: Any) -> dict[str, Any]:
    return {name: getattr(line, name) for name in _names_of(line.__class__)}


@cache
def _names_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(part.name for part in fields(kind))


_encoded: Final = json.JSONEncoder(default=_members, check_circular=False).encode
