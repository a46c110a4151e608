"""One spike while it stands."""

from __future__ import annotations

from .channels import Floats
from .findings import Diagnosis, StepTimes
from .incident import IncidentGauge
from .settings import DetectionSettings


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
