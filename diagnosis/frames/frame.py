"""One second of one host, as diagnosis sees it, live or from a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import StepSource

FINE_BINS: Final = 10
"""Bins of 100 ms in a frame of a second."""

Signals = Mapping[str, float]
"""Values by signal name. A signal that was not measured is absent: never a zero."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps that ended in this second.

    ended_ns      int64[n], CLOCK_BOOTTIME, ascending
    duration_ns   int64[n], > 0
    lost          steps that ended and found no room
    running_ns    age of the step that has not ended yet, at the frame's end; None where unknown
    """

    source: StepSource
    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    lost: int = 0
    running_ns: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """Processes whose steps are watched together: those of one cgroup.

    cgroup    path below the hierarchy's root, `/train/rank0`
    program   name of the process that makes the steps; empty where unknown
    signals   of this cgroup and its processes
    steps     measured; None where nothing marks a step
    rhythm    the processes' own rhythm, always of source RHYTHM; None before it is known
    gpus      indices of the GPUs it uses
    """

    cgroup: str
    program: str
    signals: Signals
    steps: Steps | None
    rhythm: Steps | None
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HostSample:
    """One second of one host.

    boottime_ns   CLOCK_BOOTTIME of its end
    span_ns       its true length
    host          signals of scope `host`
    fine          float32[signals.FINE, FINE_BINS]: host signals in bins of 100 ms, per second;
                  NaN where no snapshot fell into a bin
    subjects      by key: the cgroup, or `cgroup#pid` where several processes of it make steps
    cgroups       signals of scope `cgroup` of the busiest cgroups, the subjects' own included
    gpus          signals of scope `gpu` by index
    """

    boottime_ns: int
    span_ns: int
    host: Signals
    fine: NDArray[np.float32]
    subjects: Mapping[str, Subject]
    cgroups: Mapping[str, Signals] = field(default_factory=dict)
    gpus: Mapping[int, Signals] = field(default_factory=dict)
