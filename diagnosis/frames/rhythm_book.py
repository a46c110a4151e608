"""Whose rhythm is known: marks of the watched processes, and the steps that they amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectors.records.activity import RhythmMarks

from .frame import Steps
from .rhythm import Rhythms
from .step_book import KEPT_NS

_MOST_PROCESSES: Final = 64
"""Each holds up to 1.3 MB of marks until its rhythm is known."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A process whose rhythm is known, and the steps that it made of late by it."""

    pid: int
    start_ns: int
    cgroup: str
    program: str
    steps: Steps


@dataclass(slots=True)
class _Watched:
    cgroup: str
    program: str
    seen_ns: int


class RhythmBook:
    """Keeps the processes whose rhythm is marked; who is silent for a minute is forgotten."""

    def __init__(self) -> None:
        self._rhythms = Rhythms()
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
        self._rhythms.add(marks)

    def known(self, now_ns: int) -> list[Rhythm]:
        """Give every process whose rhythm is known, with its steps since the last call."""
        found: list[Rhythm] = []
        for (pid, start_ns), one in list(self._watched.items()):
            if now_ns - one.seen_ns > KEPT_NS:
                del self._watched[pid, start_ns]
                self._rhythms.forget(pid, start_ns)
                continue
            steps = self._rhythms.steps(pid, start_ns, now_ns)
            if steps is not None:
                found.append(Rhythm(pid, start_ns, one.cgroup, one.program, steps))
        return found
