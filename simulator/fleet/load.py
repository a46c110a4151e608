"""How busy the fleet is meant to be, and how slowly some of it runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulator.scenario import FleetLoad

Floats = NDArray[np.float64]

_DAY_S: Final = 86_400
_THURSDAY: Final = 3
"""1 January 1970."""

FULL: Final = 0.98

LARGE_JOB_GPUS: Final = 512
"""Fail-slow was counted apart for jobs of this size (Greyhound)."""


@dataclass(frozen=True, slots=True)
class SlowKind:
    """How often jobs of one kind meet an episode, and how long it lasts; chances are per job.

    mean_s      of an exponential; 0: as long as the job
    """

    name: str
    chance: float
    mean_s: float


# Greyhound (Wu et al., USENIX ATC 2025): computation under 2 % of jobs, 10 minutes in the mean;
# communication 40 %, 24 minutes; 16 of 27 large jobs, whose completion took 1.34 times as long.
COMPUTE: Final = SlowKind("compute", 0.015, 600.0)
COMMUNICATION: Final = SlowKind("communication", 0.40, 1440.0)
LARGE: Final = SlowKind("large", 16 / 27, 0.0)


def slow_kind(hosts: int, gpus: float) -> SlowKind:
    """Which of them a job of this size is."""
    if gpus >= LARGE_JOB_GPUS:
        return LARGE
    return COMMUNICATION if hosts > 1 else COMPUTE


def busy_target(load: FleetLoad, at_s: float) -> float:
    """Share of GPUs that jobs should hold at a time (Unix seconds); its weekly mean is busy_share.

    Where a peak would pass 98 %, it is cut off, and the mean is below.
    """
    hour = at_s % _DAY_S / 3600
    swing = 1 + load.diurnal_amplitude * cos(2 * pi * (hour - load.peak_hour_utc) / 24)
    weekday = (int(at_s // _DAY_S) + _THURSDAY) % 7
    weekend = 1 - load.weekend_drop if weekday >= 5 else 1.0
    mean = (5 + 2 * (1 - load.weekend_drop)) / 7
    return min(load.busy_share * swing * weekend / mean, FULL)


def overlap_share(begin: Floats, end: Floats, start_s: float, window_s: float) -> Floats:
    """Which part of a window each episode fills."""
    inside = np.minimum(end, start_s + window_s) - np.maximum(begin, start_s)
    return np.asarray(np.clip(inside, 0.0, None) / window_s)
