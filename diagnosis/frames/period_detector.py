"""Step times where nothing marks a step: what happens a fixed number of times a step is learnt.

Any mark to the m-th after it is one turn of a loop of m marks. Sends count before waits: how often
a program sleeps depends on how fast others answer. What was learnt stays while it gives steps, so
that a fault cannot train another period.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import MarkedProcess, RhythmKind, RhythmMarks, StepSource

from .frame import Steps

LEAST_STEPS: Final = 20
MOST_MARKS_A_STEP: Final = 16
IRREGULAR: Final = 0.6
"""Spread above which marks have no rhythm: those of a Poisson process have 1.1."""

_BUSIEST_THREADS: Final = 4
_SAMPLE: Final = 2_000
_COVERED: Final = 0.7
"""Share of the time that steps no longer than three usual ones take; a burst takes little."""
_PATTERN: Final = 0.5
"""How much more regular m marks must be than one, beyond what adding up does, to be a turn."""
_PAUSE: Final = 3.0
"""How much longer the pause between bursts is than the longest gaps within."""
_ALIKE: Final = 0.8
"""Share of bursts that have the usual number of marks."""
_TRUST: Final = {
    RhythmKind.SEND: 1.0,
    RhythmKind.COLLECTIVE: 1.0,
    RhythmKind.SYNCHRONISE: 1.0,
    RhythmKind.BLOCK: 1.25,
    RhythmKind.RECEIVE: 1.5,
    RhythmKind.WAKE: 1.5,
}
"""What a kind's spread is multiplied by when kinds are compared."""
_SEND, _RECEIVE = RhythmKind.SEND, RhythmKind.RECEIVE
_ANSWERS: Final = 0.4
"""Answers are chosen where their spread is this much below that of the best period."""

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """Marks of one process, ascending: a column each, as in RhythmMarks."""

    at_ns: Times
    kind: NDArray[np.uint8]
    thread: Times
    socket: Times

    def take(self, rows: NDArray[np.bool_]) -> Marks:
        return Marks(self.at_ns[rows], self.kind[rows], self.thread[rows], self.socket[rows])


@dataclass(frozen=True, slots=True)
class StepPeriod:
    """What a process's steps are taken from.

    kind        of the marks; for answers, SEND
    thread      whose marks, 0: of all threads
    marks       a step lasts from one mark to this many after it; 0: steps are answers, from the
                first receive on a socket to the send after it
    step_ns     the usual step while it was learnt
    spread      half the distance of the 16th and 84th percentile, as a share of the median
    """

    kind: RhythmKind
    thread: int
    marks: int
    step_ns: int
    spread: float


def _spread(durations: Times) -> tuple[float, float]:
    """Give (median, spread) of ascending durations; the spread of none is infinite."""
    if not len(durations):
        return 0.0, float("inf")
    low, middle, high = (quantile(durations, share) for share in (0.16, 0.5, 0.84))
    return middle, (high - low) / 2 / middle if middle > 0 else float("inf")


def quantile(ordered: Times, share: float) -> float:
    """Interpolate among ascending times as numpy.quantile does, in a fiftieth of its time."""
    place = (len(ordered) - 1) * share
    below = int(place)
    first = int(ordered[below])
    gap, part = int(ordered[min(below + 1, len(ordered) - 1)]) - first, place - below
    return first + gap * part if part < 0.5 else first + gap - gap * (1 - part)


def learn(
    marks: Marks, until_ns: int, unreliable: frozenset[RhythmKind] = frozenset()
) -> StepPeriod | None:
    """Choose the most regular period, or None where nothing is regular.

    unreliable  kinds of which marks are missing: they cannot be counted
    """
    best, lowest = None, IRREGULAR
    counts = np.bincount(marks.kind, minlength=len(_TRUST)).tolist()
    for kind, trust in _TRUST.items():
        if kind in unreliable or counts[kind] <= LEAST_STEPS:
            continue
        for thread, times in _streams(marks, kind):
            found = _period(kind, thread, times, until_ns - int(marks.at_ns[0]))
            if found is None:
                continue
            score, period = found
            if period.spread < IRREGULAR and score * trust < 0.95 * lowest:
                best, lowest = period, score * trust
    # Each answer has a receive and a send of its own.
    enough = min(counts[_SEND], counts[_RECEIVE]) >= LEAST_STEPS
    if enough and not unreliable & {_SEND, _RECEIVE}:
        durations = np.sort(answers(marks)[1])
        middle, spread = _spread(durations)
        if len(durations) >= LEAST_STEPS and spread < _ANSWERS * lowest:
            return StepPeriod(RhythmKind.SEND, 0, 0, int(middle), spread)
    return best


def answers(marks: Marks) -> tuple[Times, Times]:
    """Give (ended, duration) of answers: from a socket's first receive to the send after it.

    Sockets that ask are left out: they wait for less time than they think.
    """
    # All sockets at once: a program may have tens of thousands of them.
    network = (marks.kind == _SEND) | (marks.kind == _RECEIVE)
    found = marks.take(network)
    by_socket = np.argsort(found.socket, kind="stable")
    at_ns, socket = found.at_ns[by_socket], found.socket[by_socket]
    sends = found.kind[by_socket] == _SEND
    other = socket[1:] != socket[:-1]
    new = other | (sends[1:] != sends[:-1])
    firsts = np.flatnonzero(np.concatenate([[True], new])[: len(at_ns)])
    begun, is_send, whose = at_ns[firsts], sends[firsts], socket[firsts]
    same = whose[1:] == whose[:-1]
    ends, lengths, to_send = begun[1:][same], np.diff(begun)[same], is_send[1:][same]
    _, place = np.unique(whose[1:][same], return_inverse=True)
    thought = np.bincount(place, np.where(to_send, lengths, 0))
    waited = np.bincount(place, np.where(to_send, 0, lengths))
    answer = to_send & (thought <= waited)[place]
    ends, spans = ends[answer], lengths[answer]
    order = np.argsort(ends, kind="stable")
    return ends[order], np.maximum(spans[order], 1)


def _streams(marks: Marks, kind: RhythmKind) -> Iterator[tuple[int, Times]]:
    """Yield the times of one kind: of the busiest threads, then of all."""
    rows = marks.kind == kind
    thread_of, at_ns = marks.thread[rows], marks.at_ns[rows]
    threads, counts = np.unique(thread_of, return_counts=True)
    if len(threads) == 1:
        yield int(threads[0]), at_ns
        return
    busiest = threads[np.argsort(-counts, kind="stable")][:_BUSIEST_THREADS]
    for thread in busiest.tolist():
        yield thread, at_ns[thread_of == thread]
    yield 0, at_ns


def _period(
    kind: RhythmKind, thread: int, times: Times, span_ns: int
) -> tuple[float, StepPeriod] | None:
    """Find how many marks make a turn; give its score, the lower the better, and the period."""
    if len(times) <= LEAST_STEPS:
        return None
    watched_ns = span_ns * min(1.0, _SAMPLE / max(1, len(times)))
    times = times[-_SAMPLE:]
    in_burst = _burst(times)
    candidates: list[tuple[float, StepPeriod]] = []
    for number in range(1, MOST_MARKS_A_STEP + 1):
        if len(times) <= LEAST_STEPS * number:
            break
        lengths = np.sort(times[number:] - times[:-number])
        middle, spread = _spread(lengths)
        usual = lengths[: lengths.searchsorted(3 * middle, side="right")]
        if usual.sum() / number < _COVERED * watched_ns:
            continue
        period = StepPeriod(kind, thread, number, int(middle), spread)
        # Adding up makes anything more regular, by the root of the number.
        candidates.append((spread * number**0.5, period))
    by_number = {period.marks: (score, period) for score, period in candidates}
    if burst := by_number.get(in_burst):
        return burst[1].spread, burst[1]
    if not candidates:
        return None
    lowest, _ = min(candidates, key=lambda candidate: candidate[0])
    single = by_number.get(1)
    if single is not None and lowest > _PATTERN * single[0]:
        return single
    return next(candidate for candidate in candidates if candidate[0] <= 1.25 * lowest)


def _burst(times: Times) -> int:
    """Give the marks of a burst where bursts are alike, else 0.

    Where each turn is m marks and a pause, the pauses are the longest one in m of all gaps, lie m
    apart, and are far longer than the next.
    """
    gaps = np.diff(times)
    ordered = np.sort(gaps)
    ranked = ordered[::-1]
    found = 0
    for size in range(2, MOST_MARKS_A_STEP + 1):
        pauses = len(gaps) // size
        if pauses < LEAST_STEPS:
            break
        next_longest = quantile(ordered[len(gaps) - 2 * pauses : len(gaps) - pauses], 0.5)
        if quantile(ordered[len(gaps) - pauses :], 0.5) < _PAUSE * next_longest:
            continue
        places = np.flatnonzero(gaps >= ranked[pauses - 1])
        if float((np.diff(places) == size).mean()) >= _ALIKE:
            found = size
    return found


_WARM_UP_NS: Final = 5_000_000_000
_WINDOW_NS: Final = 20_000_000_000
_MOST_MARKS: Final = 40_000
_SMALL_DRAIN_BYTES: Final = 1 << 16
_LONGEST_WAIT_NS: Final = 300_000_000_000
_SILENT_NS: Final = 30_000_000_000
_SILENT_STEPS: Final = 100
"""A period is silent after 30 s and a hundred usual steps without one."""
_MOST_PROCESSES: Final = 64
"""Each holds up to 1.3 MB of marks until its period is known."""
KEPT_NS: Final = 60_000_000_000
"""Without a mark or step for so long a process is gone, or hangs, which was told long before."""
_LEARNT_A_FRAME: Final = 4_000
"""Marks that are learnt from in one frame, of one process at least: the others' turn comes."""
_LEAST_LEARNT: Final = 1_500
"""What a process with few marks counts for: looking costs something by itself."""

_Process = tuple[int, int]


@dataclass(slots=True)
class _Learning:
    """What is known of one process.

    process     as its last marks named it, at seen_ns
    recent      its latest marks, 20 s of them until the period is known
    held        how many they are
    heard       the period that was found at the last try
    missing     (time, kinds) at which marks were only counted
    rest        times of marks since the last step's end, that one included
    """

    process: MarkedProcess
    seen_ns: int = 0
    recent: deque[Marks] = field(default_factory=deque)
    held: int = 0
    missing: deque[tuple[int, frozenset[RhythmKind]]] = field(default_factory=deque)
    period: StepPeriod | None = None
    heard: StepPeriod | None = None
    rest: Times = field(default_factory=lambda: np.zeros(0, np.int64))
    fresh: list[Marks] = field(default_factory=list)
    lost: int = 0
    try_at_ns: int = 0
    wait_ns: int = _WARM_UP_NS
    stepped_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PeriodicProcess(MarkedProcess):
    """A process whose period is known, and the steps that it made of late by it."""

    steps: Steps


class PeriodDetector:
    """The periods of a host's watched processes; one without marks expires after 60 s."""

    def __init__(self) -> None:
        self._processes: dict[_Process, _Learning] = {}
        self._due: deque[_Process] = deque()
        self._frame_ns = self._learnt = 0

    def add(self, record: RhythmMarks) -> None:
        """Take what one drain handed over of a process; beyond 64 processes nothing is taken."""
        key = (record.pid, record.start_ns)
        learning = self._processes.get(key)
        full = learning is None and len(self._processes) >= _MOST_PROCESSES
        if full or not len(record.at_ns):
            return
        program = record.program or (learning.process.program if learning else "")
        process = MarkedProcess(*key, record.cgroup, program)
        if learning is None:
            learning = self._processes[key] = _Learning(process)
        learning.process, learning.seen_ns = process, int(record.at_ns[-1])
        marks = Marks(record.at_ns, record.kind, record.thread, record.socket)
        kinds = frozenset(RhythmKind(kind) for kind, gone in enumerate(record.beyond) if gone)
        if learning.period is None:
            _keep(learning, _own(marks))
            if kinds:
                learning.missing.append((learning.seen_ns, kinds))
            _forget_old(learning, learning.seen_ns)
        else:
            learning.fresh.append(marks)
            kind = learning.period.kind
            if kind in kinds:
                learning.lost += -(-record.beyond[kind] // max(learning.period.marks, 1))

    def known(self, now_ns: int) -> list[PeriodicProcess]:
        """Give every process whose period is known, with its steps since the last call."""
        found: list[PeriodicProcess] = []
        for (pid, start_ns), learning in list(self._processes.items()):
            if now_ns - learning.seen_ns > KEPT_NS:
                self.forget(pid, start_ns)
                continue
            steps, process = self.steps(pid, start_ns, now_ns), learning.process
            if steps is not None:
                found.append(PeriodicProcess(pid, start_ns, process.cgroup, process.program, steps))
        return found

    def steps(self, pid: int, start_ns: int, until_ns: int) -> Steps | None:
        """Give the steps that ended since the last call; None before the period is known."""
        learning = self._processes.get((pid, start_ns))
        if learning is None:
            return None
        if learning.period is None:
            if learning.try_at_ns > until_ns:
                return None
            if self._has_turn((pid, start_ns), learning, until_ns):
                self._learnt += max(learning.held, _LEAST_LEARNT)
                _try_to_learn(learning, until_ns)
            return None
        ended, durations = _steps_of(learning, learning.period)
        if len(ended):
            learning.stepped_ns = int(ended[-1])
        silent_ns = max(_SILENT_NS, _SILENT_STEPS * learning.period.step_ns)
        lost, learning.lost = learning.lost, 0
        if until_ns - learning.stepped_ns > silent_ns:
            self._processes[pid, start_ns] = _Learning(learning.process, learning.seen_ns)
            return None
        began_ns = int(learning.rest[0]) if learning.period.marks and len(learning.rest) else None
        running_ns = None if began_ns is None else max(0, until_ns - began_ns)
        return Steps(StepSource.RHYTHM, ended, durations, lost, running_ns)

    def forget(self, pid: int, start_ns: int) -> None:
        self._processes.pop((pid, start_ns), None)
        if (pid, start_ns) in self._due:
            self._due.remove((pid, start_ns))

    def _has_turn(self, process: _Process, learning: _Learning, frame_ns: int) -> bool:
        """Tell whether a process is due, and may be learnt in this frame: first come, first."""
        if frame_ns != self._frame_ns:
            self._frame_ns, self._learnt = frame_ns, 0
        waits = process in self._due
        if not learning.try_at_ns and learning.recent:
            learning.try_at_ns = int(learning.recent[0].at_ns[0]) + _WARM_UP_NS
        if not learning.recent or frame_ns < learning.try_at_ns:
            if waits:
                self._due.remove(process)
            return False
        if not waits:
            self._due.append(process)
        if self._learnt >= _LEARNT_A_FRAME or self._due[0] != process:
            return False
        self._due.popleft()
        return True


def _own(marks: Marks) -> Marks:
    """Copy marks out of a large drain: what one process keeps for 20 s must not keep all of it."""
    whole: object = marks.at_ns.base
    if whole is None or (isinstance(whole, np.ndarray) and whole.nbytes <= _SMALL_DRAIN_BYTES):
        return marks
    return marks.take(np.ones(len(marks.at_ns), np.bool_))


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


def _try_to_learn(learning: _Learning, now_ns: int) -> None:
    """Learn what is heard twice, 5 s apart: a start is not the work. Silence doubles the wait."""
    marks = _joined(list(learning.recent))
    missing = frozenset(kind for _, kinds in learning.missing for kind in kinds)
    before, learning.heard = learning.heard, learn(marks, now_ns, missing)
    learning.wait_ns = (
        _WARM_UP_NS if learning.heard else min(2 * learning.wait_ns, _LONGEST_WAIT_NS)
    )
    learning.try_at_ns = now_ns + learning.wait_ns
    if before is None or learning.heard is None or _marks_of(before) != _marks_of(learning.heard):
        return
    learning.period = learning.heard
    learning.recent.clear()
    learning.held = 0
    learning.missing.clear()
    learning.stepped_ns = now_ns


def _marks_of(period: StepPeriod) -> tuple[RhythmKind, int, int]:
    return period.kind, period.thread, period.marks


def _steps_of(learning: _Learning, period: StepPeriod) -> tuple[Times, Times]:
    if not period.marks:
        return _answers_of(learning)
    fresh, learning.fresh = _joined(learning.fresh), []
    wanted = fresh.kind == period.kind
    if period.thread:
        wanted &= fresh.thread == period.thread
    times = np.concatenate([learning.rest, fresh.at_ns[wanted]])
    ends = times[:: period.marks]
    if len(ends):
        learning.rest = times[(len(ends) - 1) * period.marks :]
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
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, np.int64)
    return Marks(
        np.concatenate([none, *(part.at_ns for part in parts)]),
        np.concatenate([np.zeros(0, np.uint8), *(part.kind for part in parts)]),
        np.concatenate([none, *(part.thread for part in parts)]),
        np.concatenate([none, *(part.socket for part in parts)]),
    )
