"""Step times where nothing marks a step: from the process's own rhythm, learnt once it is known.

Pure: marks in, steps out. What was learnt stays as long as it gives steps, so that a fault cannot
teach another rhythm; a beat that falls silent is learnt anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectors.records.activity import RhythmKind, RhythmMarks, StepSource

from .beats import Beat, Marks, Times, answers, learn
from .frame import Steps

_WARM_UP_NS: Final = 5_000_000_000
_WINDOW_NS: Final = 20_000_000_000
_MOST_MARKS: Final = 40_000
_SMALL_DRAIN_BYTES: Final = 1 << 16
_LONGEST_WAIT_NS: Final = 300_000_000_000
_SILENT_NS: Final = 30_000_000_000
_SILENT_STEPS: Final = 100
"""A beat is silent after 30 s and a hundred usual steps without one."""
_MOST_PROCESSES: Final = 256
_LEARNT_A_FRAME: Final = 4_000
"""Marks that are learnt from in one frame, of one process at least: the others' turn comes."""
_LEAST_LEARNT: Final = 1_500
"""What a process with few marks counts for: looking costs something by itself."""

_Process = tuple[int, int]


@dataclass(slots=True)
class _Learning:
    """What is known of one process.

    recent      its latest marks, 20 s of them until the beat is known
    held        how many they are
    heard       the beat that was found at the last try
    missing     (time, kinds) at which marks were only counted
    rest        times of marks since the last step's end, that one included
    """

    recent: deque[Marks] = field(default_factory=deque)
    held: int = 0
    missing: deque[tuple[int, frozenset[RhythmKind]]] = field(default_factory=deque)
    beat: Beat | None = None
    heard: Beat | None = None
    rest: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    fresh: list[Marks] = field(default_factory=list)
    lost: int = 0
    try_at_ns: int = 0
    wait_ns: int = _WARM_UP_NS
    stepped_ns: int = 0


class Rhythms:
    """The rhythms of a host's watched processes.

    source  what the steps are said to be taken from: COLLECTIVES where collectives alone are fed
    """

    def __init__(self, source: StepSource = StepSource.RHYTHM) -> None:
        self._source = source
        self._processes: dict[_Process, _Learning] = {}
        self._due: deque[_Process] = deque()
        self._frame_ns = self._learnt = 0

    def add(self, marks: RhythmMarks) -> None:
        """Take what one drain handed over of a process."""
        key = (marks.pid, marks.start_ns)
        if key not in self._processes and len(self._processes) >= _MOST_PROCESSES:
            return
        learning = self._processes.setdefault(key, _Learning())
        if not len(marks.at_ns):
            return
        latest = int(marks.at_ns[-1])
        kinds = _missing_kinds(marks)
        if learning.beat is None:
            _keep(learning, _own(Marks(marks.at_ns, marks.kind, marks.thread, marks.socket)))
            if kinds:
                learning.missing.append((latest, kinds))
            _forget_old(learning, latest)
        else:
            learning.fresh.append(Marks(marks.at_ns, marks.kind, marks.thread, marks.socket))
            if learning.beat.kind in kinds:
                learning.lost += -(-marks.beyond[learning.beat.kind] // max(learning.beat.marks, 1))

    def steps(self, pid: int, start_ns: int, until_ns: int) -> Steps | None:
        """Give the steps that ended since the last call; None before the rhythm is known.

        until_ns    CLOCK_BOOTTIME of now: the frame's end
        """
        learning = self._processes.get((pid, start_ns))
        if learning is None:
            return None
        if learning.beat is None:
            if learning.try_at_ns > until_ns:
                return None
            if self._has_turn((pid, start_ns), learning, until_ns):
                self._learnt += max(learning.held, _LEAST_LEARNT)
                _try_to_learn(learning, until_ns)
            return None
        ended, durations = _steps_of(learning, learning.beat)
        if len(ended):
            learning.stepped_ns = int(ended[-1])
        silent_ns = max(_SILENT_NS, _SILENT_STEPS * learning.beat.step_ns)
        lost, learning.lost = learning.lost, 0
        if until_ns - learning.stepped_ns > silent_ns:
            self._processes[pid, start_ns] = _Learning()
            return None
        began_ns = int(learning.rest[0]) if learning.beat.marks and len(learning.rest) else None
        running_ns = None if began_ns is None else max(0, until_ns - began_ns)
        return Steps(self._source, ended, durations, lost, running_ns)

    def beat(self, pid: int, start_ns: int) -> Beat | None:
        """Give what a process's steps are taken from; None before it is known."""
        learning = self._processes.get((pid, start_ns))
        return learning.beat if learning is not None else None

    def known(self, pid: int, start_ns: int) -> str:
        """Say to a person what a process's steps are taken from; "" before it is known."""
        beat = self.beat(pid, start_ns)
        return beat.title if beat is not None else ""

    def forget(self, pid: int, start_ns: int) -> None:
        """Forget a process that has ended; one that is not known is no error."""
        self._processes.pop((pid, start_ns), None)
        if (pid, start_ns) in self._due:
            self._due.remove((pid, start_ns))

    def _has_turn(self, process: _Process, learning: _Learning, frame_ns: int) -> bool:
        """Tell whether a process is due, and may be learnt in this frame: first come, first."""
        if frame_ns != self._frame_ns:
            self._frame_ns, self._learnt = frame_ns, 0
        waits = process in self._due
        if not _is_due(learning, frame_ns):
            if waits:
                self._due.remove(process)
            return False
        if not waits:
            self._due.append(process)
        if self._learnt >= _LEARNT_A_FRAME or self._due[0] != process:
            return False
        self._due.popleft()
        return True


def _missing_kinds(marks: RhythmMarks) -> frozenset[RhythmKind]:
    if not any(marks.beyond):
        return frozenset()
    return frozenset(RhythmKind(kind) for kind, gone in enumerate(marks.beyond) if gone)


def _own(marks: Marks) -> Marks:
    """Copy marks out of a large drain: what one process keeps for 20 s must not keep all of it."""
    whole: object = marks.at_ns.base
    if whole is None or (isinstance(whole, np.ndarray) and whole.nbytes <= _SMALL_DRAIN_BYTES):
        return marks
    at_ns, kind = marks.at_ns.copy(), marks.kind.copy()
    return Marks(at_ns, kind, marks.thread.copy(), marks.socket.copy())


def _keep(learning: _Learning, marks: Marks) -> None:
    learning.recent.append(marks)
    learning.held += len(marks.at_ns)


def _forget_old(learning: _Learning, latest: int) -> None:
    while learning.recent and (
        int(learning.recent[0].at_ns[-1]) < latest - _WINDOW_NS or learning.held > _MOST_MARKS
    ):
        learning.held -= len(learning.recent.popleft().at_ns)
    while learning.missing and learning.missing[0][0] < latest - _WINDOW_NS:
        learning.missing.popleft()


def _is_due(learning: _Learning, now_ns: int) -> bool:
    if not learning.recent:
        return False
    if not learning.try_at_ns:
        learning.try_at_ns = int(learning.recent[0].at_ns[0]) + _WARM_UP_NS
    return now_ns >= learning.try_at_ns


def _try_to_learn(learning: _Learning, now_ns: int) -> None:
    """Learn what is heard twice, 5 s apart: a start is not the work. Silence doubles the wait."""
    marks = _joined(list(learning.recent))
    missing = frozenset(kind for _, kinds in learning.missing for kind in kinds)
    before, learning.heard = learning.heard, learn(marks, now_ns, missing)
    learning.wait_ns = (
        _WARM_UP_NS if learning.heard else min(2 * learning.wait_ns, _LONGEST_WAIT_NS)
    )
    learning.try_at_ns = now_ns + learning.wait_ns
    if before is None or learning.heard is None or not learning.heard.same_as(before):
        return
    learning.beat = learning.heard
    learning.recent.clear()
    learning.held = 0
    learning.missing.clear()
    learning.stepped_ns = now_ns


def _steps_of(learning: _Learning, beat: Beat) -> tuple[Times, Times]:
    if not beat.marks:
        return _answers_of(learning)
    fresh, learning.fresh = _joined(learning.fresh), []
    wanted = fresh.kind == beat.kind
    if beat.thread:
        wanted &= fresh.thread == beat.thread
    times = np.concatenate([learning.rest, fresh.at_ns[wanted]])
    ends = times[:: beat.marks]
    if len(ends):
        learning.rest = times[(len(ends) - 1) * beat.marks :]
    return ends[1:], np.maximum(np.diff(ends), 1)


def _answers_of(learning: _Learning) -> tuple[Times, Times]:
    """Answers since the last call; 20 s are looked back, for sockets that ask are told by it."""
    fresh = _joined(learning.fresh)
    learning.fresh = []
    since = int(learning.recent[-1].at_ns[-1]) if learning.recent else 0
    if len(fresh.at_ns):
        _keep(learning, fresh.take(np.ones(len(fresh.at_ns), np.bool_)))
        _forget_old(learning, int(fresh.at_ns[-1]))
    ended, durations = answers(_joined(list(learning.recent)))
    new = ended > since
    return ended[new], durations[new]


def _joined(parts: list[Marks]) -> Marks:
    """Join marks of consecutive drains."""
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, np.int64)
    return Marks(
        np.concatenate([none, *(part.at_ns for part in parts)]),
        np.concatenate([np.zeros(0, np.uint8), *(part.kind for part in parts)]),
        np.concatenate([none, *(part.thread for part in parts)]),
        np.concatenate([none, *(part.socket for part in parts)]),
    )
