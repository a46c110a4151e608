"""What truly happened in a run: faults, whether they had an impact, and since when.

Steps that a probe measured are the truth, whatever a method is allowed to see. A fault counts as
one with impact when the p99 of steps in it is at least 1.3 times that before it; the impact begins
when the p99 of the seconds that follow is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.findings import Cause

from .recorded_runs import InjectedFault, RecordedRun

GATE: Final = 1.3
LASTING_NS: Final = 3_000_000_000
"""A long step is the onset when in this time from it on the p99 of the steps is too long."""
_LEAST_LONG: Final = 2
_LONG_SHARE: Final = 0.01
"""One step in a hundred above a limit: their p99 is."""
RECOVERY_NS: Final = 10_000_000_000
"""After a fault, steps may be long for a while: caches are cold, queues are full."""
LEAST_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault span of one run, as its subject felt it; overlapping faults are one episode.

    rise        p99 of steps in the span over that before; None where too few steps tell
    onset_ns    when the first too long step of many was too long; None without impact
    """

    run: str
    subject: str
    causes: tuple[Cause, ...]
    start_ns: int
    end_ns: int
    rise: float | None
    onset_ns: int | None

    @property
    def impact(self) -> bool:
        """Whether it passed the gate."""
        return self.onset_ns is not None


@dataclass(frozen=True, slots=True, eq=False)
class TrueSteps:
    """Measured steps of a subject: end and duration, int64[n], ns, ascending by end."""

    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]

    def overlapping(self, start_ns: int, end_ns: int) -> TrueSteps:
        """Those that ran in a span, even in part."""
        began = self.ended_ns - self.duration_ns
        there = (self.ended_ns > start_ns) & (began < end_ns)
        return TrueSteps(self.ended_ns[there], self.duration_ns[there])


def true_steps(run: RecordedRun, subject: str) -> TrueSteps:
    """Collect a subject's steps of a run: the probe's, or its rhythm where no probe marked any."""
    marked = [frame.subjects.get(subject) for frame in run.frames]
    measured = [
        subject.steps for subject in marked if subject is not None and subject.steps is not None
    ]
    rhythm = [
        subject.rhythm for subject in marked if subject is not None and subject.rhythm is not None
    ]
    chosen = measured or rhythm
    nothing = np.empty(0, np.int64)
    ended = np.concatenate([nothing, *(steps.ended_ns for steps in chosen)])
    took = np.concatenate([nothing, *(steps.duration_ns for steps in chosen)])
    order = np.argsort(ended, kind="stable")
    return TrueSteps(ended[order], took[order])


def episodes(run: RecordedRun) -> list[Episode]:
    """Find the episodes of a run for each of its subjects."""
    return [
        _episode(run, subject, faults)
        for subject in run.facts.subjects
        for faults in _overlapping(run.facts.faults)
    ]


def _overlapping(faults: tuple[InjectedFault, ...]) -> list[tuple[InjectedFault, ...]]:
    groups: list[list[InjectedFault]] = []
    for fault in sorted(faults, key=lambda injected: injected.start_ns):
        if groups and fault.start_ns < max(injected.end_ns for injected in groups[-1]):
            groups[-1].append(fault)
        else:
            groups.append([fault])
    return [tuple(group) for group in groups]


def _episode(run: RecordedRun, subject: str, faults: tuple[InjectedFault, ...]) -> Episode:
    start, end = min(fault.start_ns for fault in faults), max(fault.end_ns for fault in faults)
    steps = true_steps(run, subject)
    before = _calm_before(run, steps, start)
    within = steps.overlapping(start, end)
    rise = onset = None
    if min(before.ended_ns.size, within.ended_ns.size) > 0 and before.ended_ns.size >= LEAST_STEPS:
        limit = GATE * float(np.percentile(before.duration_ns, 99))
        rise = GATE * float(np.percentile(within.duration_ns, 99)) / limit
        onset = _onset(within, limit, start) if rise >= GATE else None
    causes = tuple(dict.fromkeys(fault.cause for fault in faults))
    return Episode(run.facts.name, subject, causes, start, end, rise, onset)


def _calm_before(run: RecordedRun, steps: TrueSteps, start_ns: int) -> TrueSteps:
    """Steps after the warm-up and before the span that no earlier fault touched."""
    began = steps.ended_ns - steps.duration_ns
    calm = (began >= run.facts.calm_from_ns) & (steps.ended_ns < start_ns)
    for fault in run.facts.faults:
        if fault.end_ns < start_ns:
            calm &= (steps.ended_ns < fault.start_ns) | (began > fault.end_ns + RECOVERY_NS)
    return TrueSteps(steps.ended_ns[calm], steps.duration_ns[calm])


def lasting(
    ended_ns: NDArray[np.int64], duration_ns: NDArray[np.int64], limit_ns: float
) -> int | None:
    """Find the step with which steps became too long: its place; None where they did not.

    Of the steps that ended within three seconds from it on, at least one in a hundred and at least
    two were above the limit: a chance outlier before the impact is none.

    ended_ns, duration_ns   int64[n], ascending by end
    """
    long = duration_ns > limit_ns
    seen = np.concatenate([[0], np.cumsum(long)])
    places = np.flatnonzero(long)
    until = np.searchsorted(ended_ns, ended_ns[places] + LASTING_NS, side="right")
    found = seen[until] - seen[places]
    # As numpy interpolates a 99th percentile: above the limit from one in a hundred on.
    enough = (found >= _LEAST_LONG) & (found > _LONG_SHARE * (until - places - 1))
    return int(places[enough][0]) if enough.any() else None


def _onset(steps: TrueSteps, limit_ns: float, start_ns: int) -> int | None:
    first = lasting(steps.ended_ns, steps.duration_ns, limit_ns)
    if first is None:
        return None
    # The moment it was too long, not the later one when it ended.
    return max(start_ns, int(steps.ended_ns[first] - steps.duration_ns[first] + limit_ns))
