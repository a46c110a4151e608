"""What the last minute of a subject looked like: the picture that goes with a diagnosis."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from diagnosis.frames.frame import Frame, Signals, Steps

from .channels import related
from .findings import Diagnosis, Finding, SpikeEnded

SECONDS: Final = 60
MOST_SIGNALS: Final = 6
AFTER_NS: Final = 40_000_000_000
"""A spike that lasts gets its picture so long after its onset: a third of it lies before."""
MOST_SPIKES: Final = 256

Spike = tuple[str, int]
"""Subject and onset."""


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """One signal of a scope (`Evidence`), second by second; None where it was not measured."""

    scope: str
    signal: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A subject's last minute beside a few signals; every tuple has one entry a second.

    seconds      end of each second, relative to the onset
    p50_ms       of the steps that ended in it; None where none did
    longest_ms   likewise, or the age of a step that had not ended
    named_s      when the cause that stands was first named; None before it was
    ended_s      when it was over; None where it stood when this was cut
    """

    subject: str
    onset_ns: int
    seconds: tuple[float, ...]
    p50_ms: tuple[float | None, ...]
    longest_ms: tuple[float | None, ...]
    signals: tuple[SignalSeries, ...]
    named_s: float | None = None
    ended_s: float | None = None


class Trail:
    """Keeps the frames of the last minute, of which pictures are made."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque(maxlen=SECONDS)

    def add(self, frame: Frame) -> None:
        """Take one second."""
        self._frames.append(frame)

    def series(self, standing: Diagnosis, named_ns: int, ended_ns: int | None = None) -> Series:
        """Cut the picture of a diagnosis; at most six signals are in it.

        named_ns   when its cause was first named
        ended_ns   when the spike was over; None while it stands
        """
        key, onset_ns = standing.subject, standing.onset_ns
        frames = [frame for frame in self._frames if key in frame.subjects]
        found = [frame.subjects[key] for frame in frames]
        steps = [
            _times_ms(subject.steps if subject.steps is not None else subject.rhythm)
            for subject in found
        ]
        signals = list(
            dict.fromkeys((evidence.scope, evidence.signal) for evidence in standing.evidence)
        )
        return Series(
            key,
            onset_ns,
            tuple(round((frame.boottime_ns - onset_ns) / 1e9, 3) for frame in frames),
            tuple(p50 for p50, _ in steps),
            tuple(longest for _, longest in steps),
            tuple(
                SignalSeries(*signal, tuple(_value(*signal, frame, key) for frame in frames))
                for signal in signals[:MOST_SIGNALS]
            ),
            round((named_ns - onset_ns) / 1e9, 3),
            None if ended_ns is None else round((ended_ns - onset_ns) / 1e9, 3),
        )


@dataclass(frozen=True, slots=True)
class _Standing:
    """The diagnosis that stands, and when its cause was first named."""

    diagnosis: Diagnosis
    named_ns: int

    @classmethod
    def after(cls, before: _Standing | None, now: Diagnosis) -> _Standing:
        same = before is not None and before.diagnosis.cause is now.cause
        return cls(now, before.named_ns if before is not None and same else now.at_ns)


class SpikeTrails:
    """Cuts one picture of each spike: at its end, or once it has lasted."""

    def __init__(self) -> None:
        self._trail = Trail()
        self._due: OrderedDict[Spike, _Standing] = OrderedDict()
        self._cut: OrderedDict[Spike, None] = OrderedDict()

    def take(self, frame: Frame, findings: Iterable[Finding]) -> list[Series]:
        """Take one second and what was found in it; give the pictures that are due."""
        self._trail.add(frame)
        ended: dict[Spike, int] = {}
        for finding in findings:
            if isinstance(finding, Diagnosis):
                spike = (finding.subject, finding.onset_ns)
                if spike not in self._cut and len(self._due) < MOST_SPIKES:
                    self._due[spike] = _Standing.after(self._due.get(spike), finding)
            elif isinstance(finding, SpikeEnded):
                ended[finding.subject, finding.onset_ns] = finding.ended_ns
        latest_ns = frame.boottime_ns - AFTER_NS
        due = [spike for spike in self._due if spike in ended or spike[1] <= latest_ns]
        pictures = [self._picture(spike, ended.get(spike)) for spike in due]
        for spike in ended:
            self._cut.pop(spike, None)
        return pictures

    def rest(self) -> list[Series]:
        """Give the pictures of spikes that stand: there are no more frames."""
        return [self._picture(spike) for spike in list(self._due)]

    def _picture(self, spike: Spike, ended_ns: int | None = None) -> Series:
        standing = self._due.pop(spike)
        self._cut[spike] = None
        while len(self._cut) > MOST_SPIKES:
            self._cut.popitem(last=False)
        return self._trail.series(standing.diagnosis, standing.named_ns, ended_ns)


def _times_ms(steps: Steps | None) -> tuple[float | None, float | None]:
    """Give the median and the longest step of a second; the age of one that runs on counts."""
    if steps is None:
        return None, None
    running_ms = round((steps.running_ns or 0) / 1e6, 3)
    if not len(steps.duration_ns):
        return None, running_ms or None
    ms = steps.duration_ns / 1e6
    return round(float(np.median(ms)), 3), round(max(float(ms.max()), running_ms), 3)


def _value(scope: str, signal: str, frame: Frame, key: str) -> float | None:
    """Look a signal up where its scope says."""
    subject = frame.subjects[key]
    places: Mapping[str, Iterable[Signals]] = {
        "own": [subject.signals],
        "host": [frame.host],
        "gpu": [frame.gpus[gpu] for gpu in subject.gpus if gpu in frame.gpus],
        "other": [
            signals for name, signals in frame.cgroups.items() if not related(name, subject.cgroup)
        ],
    }
    found = [place[signal] for place in places.get(scope, ()) if signal in place]
    if not found:
        return None
    return float(f"{sum(found) if scope == 'other' else found[0]:.6g}")
