"""Frames in, findings out: all subjects of one host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from diagnosis.frames.frame import Frame, Steps, Subject

from .channels import Floats, Readings
from .detection_settings import DetectionSettings
from .findings import Finding, StepTimes
from .watch import HostContext, SubjectWatch

_NS: Final = 1_000_000_000
Ruler = Literal["measured", "rhythm"]


class Diagnoser:
    """Finds spikes and their causes; no clock, file or socket inside.

    settings   limits
    source     `rhythm`: the rhythm is used even where steps are measured
    """

    def __init__(
        self,
        settings: DetectionSettings = DetectionSettings(),  # noqa: B008 -- frozen
        source: Ruler = "measured",
    ) -> None:
        self._settings = settings
        self._host = HostContext(settings)
        self._source = source
        self._watches: dict[str, SubjectWatch] = {}

    def handle(self, frame: Frame) -> list[Finding]:
        """Take one second of the host; frames come in order of time."""
        readings = Readings.of(frame)
        self._host.fine.take(frame)
        findings: list[Finding] = []
        for key, subject in frame.subjects.items():
            watch = self._watch(key)
            if watch is not None:
                findings += watch.handle(subject, self.steps_of(subject), readings)
        if all(watch.calm for watch in self._watches.values()):
            self._host.neighbours.learn(readings)
        return findings + self._forget(frame.boottime_ns)

    @property
    def watched(self) -> tuple[str, ...]:
        """Subjects that are kept in mind."""
        return tuple(self._watches)

    def usual(self, key: str) -> StepTimes | None:
        """Usual step times of a subject; None before they are known."""
        watch = self._watches.get(key)
        return watch.usual if watch is not None else None

    @property
    def vectors(self) -> Mapping[str, Floats]:
        """What spikes that stand were last judged by, by subject: of their last unusual second."""
        spikes = {key: watch.spike for key, watch in self._watches.items()}
        return {
            key: spike.vector
            for key, spike in spikes.items()
            if spike is not None and spike.vector is not None
        }

    def _watch(self, key: str) -> SubjectWatch | None:
        """Give a subject's state; None where there is no room for one more."""
        watch = self._watches.get(key)
        if watch is None and len(self._watches) < self._settings.subjects:
            watch = self._watches[key] = SubjectWatch(key, self._host)
        return watch

    def steps_of(self, subject: Subject) -> Steps | None:
        """Give the steps that a subject is judged by: measured where they are, else its rhythm."""
        if self._source == "measured" and subject.steps is not None:
            return subject.steps
        return subject.rhythm

    def _forget(self, now_ns: int) -> list[Finding]:
        limit_ns = now_ns - int(self._settings.forget_s * _NS)
        gone = [key for key, watch in self._watches.items() if watch.seen_ns < limit_ns]
        return [found for key in gone for found in self._watches.pop(key).gone(now_ns)]
