"""When a diagnosed spike is an incident: the stricter limit that guards the fleet's count."""

from __future__ import annotations

from .findings import StepTimes
from .settings import DetectionSettings


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
