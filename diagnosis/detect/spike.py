"""A spike while it stands, and what its detector keeps of a second and says of the tail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .channels import Floats
from .detection_settings import DetectionSettings
from .findings import Diagnosis, StepTimes


@dataclass(frozen=True, slots=True, eq=False)
class TailSecond:
    """The steps of one frame, measured by what is usual.

    ended_ns, duration_ns   int64[n] each
    steps     those that ended, and one that will not end
    long_ns   when each long one ended; a frame's end for a stalled one
    """

    at_ns: int
    span_s: float
    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    steps: int
    long_ns: tuple[int, ...]
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """What the last seconds say of the tail.

    nats      log of how much likelier the share of long steps is now than usual
    onset_ns  the long step from which on the steps are likeliest to have changed; the frame's end
              where there is no spike
    lately    the same of the last three seconds alone
    current   the newest second is, by itself
    stalled   a step will not end
    settling  a job begun anew: its first steps are measured by nothing
    likely    a spike where something else makes one likely
    """

    spiking: bool
    nats: float
    onset_ns: int
    lately: float = 0.0
    current: bool = False
    stalled: bool = False
    settling: bool = False
    likely: bool = False


class TailRatios(NamedTuple):
    """log2 of now to usual: quantiles of the step times, and steps a second. NaN: unknown."""

    p10: float
    p50: float
    p99: float
    rate: float


class IncidentGauge:
    """Persistence and impact of one spike.

    Heavy seconds count: those whose tail reaches `incident_ratio` times the usual one. Seconds that
    are not heavy take one back each, so that a spike that flickers needs longer.
    """

    def __init__(self, settings: DetectionSettings, before: StepTimes) -> None:
        self._limit_s = settings.incident_s
        self._ratio = settings.incident_ratio
        self._before = before
        self._heavy_s = 0.0
        self.reached = False

    def take(self, now: StepTimes, stalled: bool, span_s: float) -> bool:
        """Count one frame; True once the spike is an incident, and from then on."""
        heavy = stalled or (now.steps > 0 and now.p99_ms >= self._ratio * self._before.p99_ms)
        self._heavy_s = max(0.0, self._heavy_s + (span_s if heavy else -span_s))
        self.reached = self.reached or self._heavy_s >= self._limit_s
        return self.reached


class StandingSpike:
    """When it began, what was usual before, and what was said of it last.

    enough_nats   evidence in three seconds that keeps it: a third of what it was believed for
    lags_whole    whether all seconds that the lags are read from were there
    calm_frames   how many in a row had nothing unusual
    """

    def __init__(
        self, settings: DetectionSettings, onset_ns: int, before: StepTimes, believed_nats: float
    ) -> None:
        self.onset_ns = onset_ns
        self.enough_nats = believed_nats / 3
        self.before = before
        self.gauge = IncidentGauge(settings, before)
        self.lags_s: Floats | None = None
        self.lags_whole = False
        self.vector: Floats | None = None
        self.last: Diagnosis | None = None
        self.frames = 0
        self.calm_frames = 0
