"""Whether a fault did anything to the steps, judged by the workload's own times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from pointillist.judging.runs import GATE, lasting


@dataclass(frozen=True, slots=True)
class Times:
    steps: int
    p50_ms: float
    p99_ms: float
    most_ms: float

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]]) -> Times:
        """Sum up (ended, duration) in ns; all zero where there was no step."""
        if not rows:
            return cls(0, 0.0, 0.0, 0.0)
        durations = np.array([duration for _, duration in rows]) / 1e6
        p50, p99 = np.percentile(durations, [50, 99])
        return cls(len(rows), *(round(float(x), 3) for x in (p50, p99, durations.max())))


@dataclass(frozen=True, slots=True)
class Impact:
    """What a fault did to one subject.

    onset_ns   end of the first step above 1.3 times the p99 before, from which on the p99 of
               three seconds is (`judging.runs.lasting`); None where there is none
    """

    before: Times
    during: Times
    ratio: float
    onset_ns: int | None

    @property
    def passed(self) -> bool:
        """Whether the fault counts, by the gate of the protocol."""
        return self.ratio >= GATE and self.onset_ns is not None

    def document(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


def impact(before: Sequence[tuple[int, int]], during: Sequence[tuple[int, int]]) -> Impact:
    """Compare the steps (ended, duration) in ns of an undisturbed stretch with a fault's."""
    usual, struck = Times.of(before), Times.of(during)
    ratio = round(struck.p99_ms / usual.p99_ms, 3) if usual.p99_ms else 0.0
    bound_ns = usual.p99_ms * GATE * 1e6
    rows = np.array(sorted(during), np.int64).reshape(-1, 2)
    first = lasting(rows[:, 0], rows[:, 1], bound_ns) if usual.steps else None
    onset = None if first is None else int(rows[first, 0])
    return Impact(usual, struck, ratio, onset)
