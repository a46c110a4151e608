"""What the last minute of a subject looked like: the picture that goes with a diagnosis."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.frames.frame import Frame, Signals, Steps, Subject

from .findings import Diagnosis, Finding, SpikeEnded

SECONDS: Final = 60
MOST_SIGNALS: Final = 6
AFTER_NS: Final = 20_000_000_000
"""A spike that lasts gets its picture so long after its onset: two thirds of it lie before."""
MOST_SPIKES: Final = 256

Spike = tuple[str, int]
"""Subject and onset."""


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """One signal, second by second; None where it was not measured."""

    signal: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A subject's last minute beside a few signals; every tuple has one entry a second.

    seconds      end of each second, relative to the onset
    p50_ms       of the steps that ended in it; None where none did
    longest_ms   likewise, or the age of a step that had not ended
    """

    subject: str
    onset_ns: int
    seconds: tuple[float, ...]
    p50_ms: tuple[float | None, ...]
    longest_ms: tuple[float | None, ...]
    signals: tuple[SignalSeries, ...]


class Trail:
    """Keeps the frames of the last minute, for whoever wants a picture of them."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque(maxlen=SECONDS)

    def add(self, frame: Frame) -> None:
        """Take one second."""
        self._frames.append(frame)

    def series(self, subject: str, onset_ns: int, signals: Iterable[str]) -> Series:
        """Cut the picture of one subject; at most six signals are in it."""
        seen = [(frame, frame.subjects[subject]) for frame in self._frames
                if subject in frame.subjects]  # fmt: skip
        steps = [_times_ms(one.steps if one.steps is not None else one.rhythm) for _, one in seen]
        names = list(dict.fromkeys(signals))[:MOST_SIGNALS]
        return Series(
            subject,
            onset_ns,
            tuple(round((frame.boottime_ns - onset_ns) / 1e9, 3) for frame, _ in seen),
            tuple(p50 for p50, _ in steps),
            tuple(longest for _, longest in steps),
            tuple(
                SignalSeries(name, tuple(_value(name, frame, own) for frame, own in seen))
                for name in names
            ),
        )


class Pictures:
    """Cuts one picture of each spike: at its end, or once it has lasted."""

    def __init__(self) -> None:
        self._trail = Trail()
        self._due: OrderedDict[Spike, Diagnosis] = OrderedDict()
        self._cut: OrderedDict[Spike, None] = OrderedDict()

    def take(self, frame: Frame, findings: Iterable[Finding]) -> list[Series]:
        """Take one second and what was found in it; give the pictures that are due."""
        self._trail.add(frame)
        ended: list[Spike] = []
        for finding in findings:
            if isinstance(finding, Diagnosis):
                spike = (finding.subject, finding.onset_ns)
                if spike not in self._cut and len(self._due) < MOST_SPIKES:
                    self._due[spike] = finding
            elif isinstance(finding, SpikeEnded):
                ended.append((finding.subject, finding.onset_ns))
        latest_ns = frame.boottime_ns - AFTER_NS
        due = [spike for spike in self._due if spike in ended or spike[1] <= latest_ns]
        pictures = [self._picture(spike) for spike in due]
        for spike in ended:
            self._cut.pop(spike, None)
        return pictures

    def rest(self) -> list[Series]:
        """Give the pictures of spikes that stand: there are no more frames."""
        return [self._picture(spike) for spike in list(self._due)]

    def _picture(self, spike: Spike) -> Series:
        standing = self._due.pop(spike)
        self._cut[spike] = None
        while len(self._cut) > MOST_SPIKES:
            self._cut.popitem(last=False)
        return self._trail.series(*spike, (one.signal for one in standing.evidence))


def _times_ms(steps: Steps | None) -> tuple[float | None, float | None]:
    """Give the median and the longest step of a second; the age of one that runs on counts."""
    if steps is None:
        return None, None
    running_ms = round((steps.running_ns or 0) / 1e6, 3)
    if not len(steps.duration_ns):
        return None, running_ms or None
    ms = steps.duration_ns / 1e6
    return round(float(np.median(ms)), 3), round(max(float(ms.max()), running_ms), 3)


def _value(name: str, frame: Frame, subject: Subject) -> float | None:
    """Look a signal up: the subject's own, then its GPUs', then the host's.

    name    of the table of signals; a scope before a point narrows it: `host.run_delay_ms_per_s`
    """
    scope, point, bare = name.rpartition(".")
    gpus = [frame.gpus[gpu] for gpu in subject.gpus if gpu in frame.gpus]
    places: dict[str, list[Signals]] = {"own": [subject.signals], "gpu": gpus, "host": [frame.host]}
    looked = places.get(scope, []) if point else [one for some in places.values() for one in some]
    found = [place[bare] for place in looked if bare in place]
    return float(f"{found[0]:.6g}") if found else None
