"""Cases of pressure, the seconds in which they were seen, and what the diagnosis says of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Diagnosis
from diagnosis.frames.frame import FINE_BINS, Frame, Steps, Subject
from diagnosis.frames.signals import FINE
from scripts.pressure.copies import INJECTORS

HELD_OUT: Final = frozenset(INJECTORS[1:])
IMPACT: Final = 1.3
_SUBJECT: Final = "/gpu-check"
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """One stretch of pressure."""

    injector: str
    level: str
    start_ns: int
    end_ns: int
    pressed_bytes_per_s: float

    @property
    def held_out(self) -> bool:
        """Whether the injector or the level only judges."""
        return self.injector in HELD_OUT or self.level == "middle"


@dataclass(slots=True)
class Second:
    """One look: GPU signals, and the steps that ended since the look before."""

    at_ns: int
    span_ns: int
    gpu: dict[str, float]
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """What a case did and what was said of it.

    rise     p99 of steps in it over that of the calm before
    answer   the cause that stood at its end; "" nothing was said
    """

    injector: str
    level: str
    held_out: bool
    pressed_gb_per_s: float
    rise: float
    answer: str
    signals: dict[str, float]

    @property
    def impact(self) -> bool:
        """Whether it passed the gate."""
        return self.rise >= IMPACT


def frame_of(second: Second) -> Frame:
    """Make the second a frame: one subject on GPU 0, no host signals."""
    ended = np.array([one for one, _ in second.steps], np.int64)
    took = np.array([one for _, one in second.steps], np.int64)
    steps = Steps(StepSource.SYNCHRONISATIONS, ended, took)
    subject = Subject(_SUBJECT, "gpu-check", {}, steps, None, (0,))
    fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
    gpus = {0: second.gpu}
    return Frame(second.at_ns, second.span_ns, {}, fine, {_SUBJECT: subject}, {}, gpus)


def results_of(seconds: Sequence[Second], cases: Sequence[Case]) -> list[Result]:
    """Play the seconds through the diagnoser; give what stood at each case's end."""
    diagnoser = Diagnoser()
    said = [
        (found.at_ns, str(found.cause))
        for second in seconds
        for found in diagnoser.handle(frame_of(second))
        if isinstance(found, Diagnosis)
    ]
    results = []
    for case in cases:
        answers = [cause for at_ns, cause in said if case.start_ns <= at_ns <= case.end_ns]
        results.append(Result(
            case.injector, case.level, case.held_out, case.pressed_bytes_per_s / 1e9,
            _rise(seconds, case), answers[-1] if answers else "", _mean(_within(seconds, case)),
        ))  # fmt: skip
    return results


def _rise(seconds: Sequence[Second], case: Case) -> float:
    """Give p99 in the case over p99 of the 8 s before it; 0 where there are too few steps."""
    before = [s for s in seconds if case.start_ns - 8 * _NS <= s.at_ns < case.start_ns]
    calm, struck = _p99(before), _p99(_within(seconds, case))
    return struck / calm if calm else 0.0


def _p99(seconds: Sequence[Second]) -> float:
    took = sorted(duration for second in seconds for _, duration in second.steps)
    return float(statistics.quantiles(took, n=100)[98]) if len(took) >= 20 else 0.0


def _within(seconds: Sequence[Second], case: Case) -> list[Second]:
    return [one for one in seconds if case.start_ns + _NS <= one.at_ns <= case.end_ns]


def _mean(seconds: Sequence[Second]) -> dict[str, float]:
    names = {name for second in seconds for name in second.gpu}
    told = {name: [s.gpu[name] for s in seconds if name in s.gpu] for name in sorted(names)}
    return {name: round(statistics.mean(values), 3) for name, values in told.items()}
