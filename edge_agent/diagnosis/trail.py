"""What the last minute of a subject looked like: the picture that goes with a diagnosis."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge_agent.frames.frame import Frame, Signals, Steps, Subject

SECONDS: Final = 60
MOST_SIGNALS: Final = 6


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
