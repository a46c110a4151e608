"""What a compared method is, and the arrays it reads: taught by runs, it tells of any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect import channels
from diagnosis.detect.findings import Cause
from diagnosis.frames.frame import FINE_BINS, Frame, Steps, Subject
from pointillist.teaching.account import Account, Said
from pointillist.teaching.fault_episodes import RECOVERY_NS, Episode
from pointillist.teaching.recorded_runs import RecordedRun

NS: Final = 1e9
MS: Final = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """What is known of one subject of one run, second by second.

    at_ns       int64[n], ends of the seconds
    channels    float64[n, channels.CHANNEL_NAMES]; NaN: absent
    tail_ms     float64[n], longest step of the second, a running one's age counted; NaN: none
    fine_tail   float64[n, FINE_BINS], the same in bins of 100 ms
    fine        float64[n, signals.FINE, FINE_BINS]
    calm        bool[n]: after the warm-up, outside of faults and of the time to recover
    """

    run: str
    subject: str
    at_ns: NDArray[np.int64]
    channels: NDArray[np.float64]
    tail_ms: NDArray[np.float64]
    fine_tail: NDArray[np.float64]
    fine: NDArray[np.float64]
    calm: NDArray[np.bool_]


def tracks_of(run: RecordedRun, rhythm: bool = False) -> list[Track]:
    """Turn a run into arrays, for each watched subject that was ever seen.

    rhythm   take steps from the subject's rhythm although they were measured
    """
    return [
        _track(run, subject, rhythm)
        for subject in run.facts.subjects
        if any(subject in frame.subjects for frame in run.frames)
    ]


def _track(run: RecordedRun, subject: str, rhythm: bool) -> Track:
    frames = [frame for frame in run.frames if subject in frame.subjects]
    steps = [_steps(frame.subjects[subject], rhythm) for frame in frames]
    at_ns = np.array([frame.boottime_ns for frame in frames], np.int64)
    return Track(
        run.facts.name,
        subject,
        at_ns,
        np.stack([channels.read(frame, subject) for frame in frames]),
        np.array([_longest_ms(step) for step in steps]),
        np.stack([_fine_ms(frame, step) for frame, step in zip(frames, steps, strict=True)]),
        np.stack([frame.fine.astype(np.float64) for frame in frames]),
        _calm(run, at_ns),
    )


def _steps(subject: Subject, rhythm: bool) -> Steps | None:
    return subject.rhythm if rhythm else subject.steps or subject.rhythm


def _longest_ms(steps: Steps | None) -> float:
    if steps is None:
        return float("nan")
    ages = [float(steps.running_ns)] if steps.running_ns else []
    took = [*steps.duration_ns.astype(float), *ages]
    return max(took) / MS if took else float("nan")


def _fine_ms(frame: Frame, steps: Steps | None) -> NDArray[np.float64]:
    longest = np.full(FINE_BINS, np.nan)
    if steps is None:
        return longest
    began = frame.boottime_ns - frame.span_ns
    places = (steps.ended_ns - began) * FINE_BINS // max(1, frame.span_ns)
    for place, took in zip(np.clip(places, 0, FINE_BINS - 1), steps.duration_ns, strict=True):
        longest[place] = np.fmax(longest[place], took / MS)
    return longest


def _calm(run: RecordedRun, at_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    calm: NDArray[np.bool_] = at_ns > run.facts.calm_from_ns
    for fault in run.facts.faults:
        calm &= (at_ns < fault.start_ns) | (at_ns > fault.end_ns + RECOVERY_NS)
    return calm


Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A feature vector of one second under a fault whose cause is known."""

    run: str
    at_ns: int
    cause: Cause
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A second of a spike of the shipped detector, and the features it was last judged by."""

    subject: str
    onset_ns: int
    at_ns: int
    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A run after one pass over its frames; every method reads this.

    rules      account of the shipped detector with hand rules
    seen       its spikes, second by second
    examples   labelled vectors of the run's faults, where one fault is there alone
    """

    run: RecordedRun
    episodes: tuple[Episode, ...]
    tracks: tuple[Track, ...]
    rules: Account
    seen: tuple[Seen, ...]
    examples: tuple[Example, ...]
    rhythm: bool

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.facts.name


class Method(Protocol):
    """One way to find spikes and their causes."""

    name: str

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn thresholds and whatever else from training runs."""

    def account(self, run: Prepared) -> Account:
        """Say what happened in a run, each second from the seconds before it alone."""


def said_from(ranked: Sequence[tuple[Cause, float]], at_ns: int, unlike: float) -> Said:
    """Make a word out of causes by belief, largest first."""
    cause = ranked[0][0] if ranked else Cause.UNKNOWN
    second = ranked[1][0] if len(ranked) > 1 else None
    return Said(at_ns, cause, second, unlike)
