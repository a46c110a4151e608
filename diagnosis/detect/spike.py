"""One spike while it stands."""

from __future__ import annotations

from .channels import Floats
from .detection_settings import DetectionSettings
from .findings import Diagnosis, StepTimes


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
