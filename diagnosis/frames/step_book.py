"""Steps of each process: as they were marked, what has not ended, and by a rhythm that is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectors.records.activity import MarkedProcess, RhythmMarks, StepMarks, StepSource

from .frame import Steps
from .period_detector import PeriodDetector

KEPT_NS: Final = 60_000_000_000
"""Without a step for so long it makes none any more, or hangs, which was told long before."""

_EXACT: Final = list(StepSource)


@dataclass(slots=True)
class Stepper:
    """One process that makes steps; its most exact mark counts while it comes."""

    process: MarkedProcess
    source: StepSource
    probe: str
    seen_ns: int
    open_ns: int | None = None
    waiting: list[StepMarks] = field(default_factory=list)

    def take(self, now_ns: int) -> Steps:
        marks, self.waiting = self.waiting, []
        none = np.zeros(0, np.int64)
        ended = np.concatenate([none, *(mark.ended_ns for mark in marks)])
        lasted = np.concatenate([none, *(mark.duration_ns for mark in marks)])
        if len(marks) > 1:
            order = np.argsort(ended, kind="stable")
            ended, lasted = ended[order], lasted[order]
        since_ns = self.open_ns if marks else None
        running = None if since_ns is None else max(0, now_ns - since_ns)
        return Steps(self.source, ended, lasted, sum(mark.lost for mark in marks), running)


class StepBook:
    def __init__(self) -> None:
        self._steppers: dict[tuple[int, int], Stepper] = {}

    def add(self, marks: StepMarks) -> None:
        """Take one record; of two marks of one process the more exact one counts."""
        key = (marks.pid, marks.start_ns)
        ended = marks.ended_ns
        last_ns = int(ended[-1]) if len(ended) else (marks.open_since_ns or 0)
        known = self._steppers.get(key)
        if known is None and not len(ended):
            return  # in its first step, which may never end
        if known is None or self._better(marks, known, last_ns):
            known = self._steppers[key] = Stepper(marks, marks.source, marks.probe, last_ns)
        if (known.source, known.probe) != (marks.source, marks.probe):
            return
        program = marks.program or known.process.program
        known.process = MarkedProcess(marks.pid, marks.start_ns, marks.cgroup, program)
        known.seen_ns = max(known.seen_ns, last_ns)
        known.open_ns = marks.open_since_ns
        known.waiting.append(marks)

    def steppers(self, now_ns: int) -> Iterator[Stepper]:
        """Give the processes that made a step in the last 60 s; forget the others."""
        for key, stepper in list(self._steppers.items()):
            if now_ns - stepper.seen_ns > KEPT_NS:
                del self._steppers[key]
            else:
                yield stepper

    def forget(self, pid: int, start_ns: int) -> None:
        self._steppers.pop((pid, start_ns), None)

    @staticmethod
    def _better(marks: StepMarks, known: Stepper, last_ns: int) -> bool:
        if not len(marks.ended_ns) or known.probe == marks.probe:
            return False
        if last_ns - known.seen_ns > KEPT_NS:
            return True
        return _EXACT.index(marks.source) < _EXACT.index(known.source)


_MOST_PROCESSES: Final = 64
"""Each holds up to 1.3 MB of marks until its rhythm is known."""


@dataclass(frozen=True, slots=True, eq=False)
class PeriodicProcess(MarkedProcess):
    """A process whose rhythm is known, and the steps that it made of late by it."""

    steps: Steps


@dataclass(slots=True)
class _Watched:
    cgroup: str
    program: str
    seen_ns: int


class PeriodBook:
    """Keeps the processes whose rhythm is marked; one without marks expires after 60 s."""

    def __init__(self) -> None:
        self._detector = PeriodDetector()
        self._watched: dict[tuple[int, int], _Watched] = {}

    def add(self, marks: RhythmMarks) -> None:
        """Take what one drain handed over of a process; beyond 64 processes nothing is taken."""
        key = (marks.pid, marks.start_ns)
        if not len(marks.at_ns) or (
            key not in self._watched and len(self._watched) >= _MOST_PROCESSES
        ):
            return
        program = marks.program or (self._watched[key].program if key in self._watched else "")
        self._watched[key] = _Watched(marks.cgroup, program, int(marks.at_ns[-1]))
        self._detector.add(marks)

    def known(self, now_ns: int) -> list[PeriodicProcess]:
        found: list[PeriodicProcess] = []
        for (pid, start_ns), watched in list(self._watched.items()):
            if now_ns - watched.seen_ns > KEPT_NS:
                del self._watched[pid, start_ns]
                self._detector.forget(pid, start_ns)
                continue
            steps = self._detector.steps(pid, start_ns, now_ns)
            if steps is not None:
                found.append(PeriodicProcess(pid, start_ns, watched.cgroup, watched.program, steps))
        return found
