"""Steps out of marks that were made up: loops, a server, noise; the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from collectors.records.activity import RhythmKind, RhythmMarks, StepSource
from diagnosis.frames.frame import Steps
from diagnosis.frames.period_detector import PeriodDetector, StepPeriod, quantile

SECOND = 1_000_000_000
MS = 1_000_000
PID, START, MAIN, OTHER = 7, 70, 7, 8
NOTHING_BEYOND = (0,) * len(RhythmKind)

Mark = tuple[int, RhythmKind, int, int]
"""(time, kind, thread, socket)"""


def turns(rng: np.random.Generator, count: int, usual_ms: float, jitter: float) -> list[int]:
    """Ends of steps."""
    lengths = usual_ms * MS * rng.normal(1, jitter, count).clip(0.5)
    return [int(end) for end in np.cumsum(lengths)]


def fed(
    marks: Sequence[Mark], beyond: tuple[int, ...] = NOTHING_BEYOND
) -> tuple[PeriodDetector, list[Steps]]:
    """Feed marks second by second; give the rhythms and what came out."""
    rhythms, out = PeriodDetector(), []
    rows = sorted(marks)
    for begin in range(0, rows[-1][0] + SECOND, SECOND):
        part = [row for row in rows if begin <= row[0] < begin + SECOND]
        rhythms.add(record(part, beyond))
        steps = rhythms.steps(PID, START, begin + SECOND)
        if steps is not None:
            out.append(steps)
    return rhythms, out


def learnt(detector: PeriodDetector) -> StepPeriod | None:
    return detector._processes[PID, START].period


def record(part: Sequence[Mark], beyond: tuple[int, ...] = NOTHING_BEYOND) -> RhythmMarks:
    return RhythmMarks(
        pid=PID,
        start_ns=START,
        cgroup="/train",
        program="train",
        at_ns=np.array([mark[0] for mark in part], np.int64),
        kind=np.array([mark[1] for mark in part], np.uint8),
        thread=np.array([mark[2] for mark in part], np.int64),
        value=np.ones(len(part), np.int64),
        socket=np.array([mark[3] for mark in part], np.int64),
        round_trip_us=np.zeros(len(part), np.int64),
        beyond=beyond,
    )


def durations(out: Sequence[Steps]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.concatenate([steps.duration_ns for steps in out])


def noise(rng: np.random.Generator, until_ns: int, per_s: float, thread: int) -> list[Mark]:
    """Wakes without a rhythm."""
    times = rng.uniform(0, until_ns, int(per_s * until_ns / SECOND)).astype(int)
    return [(at, RhythmKind.WAKE, thread, 0) for at in times.tolist()]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


def test_rhythm_of_a_step_loop_is_its_send(rng: np.random.Generator) -> None:
    ends = turns(rng, 2_500, 10, 0.05)
    marks: list[Mark] = [(end, RhythmKind.SEND, MAIN, 1) for end in ends]
    for end in ends:
        marks += [(end - k * MS, RhythmKind.BLOCK, MAIN, 0) for k in (7, 8, 9)]
        marks += [
            (end + int(rng.integers(1, MS)), RhythmKind.RECEIVE, MAIN, 1)
            for _ in range(rng.integers(1, 4))
        ]
    marks += noise(rng, ends[-1], 200, MAIN)
    rhythms, out = fed(marks)
    period = learnt(rhythms)
    assert period is not None
    assert (period.kind, period.thread, period.marks) == (RhythmKind.SEND, MAIN, 1)
    seen = np.concatenate([steps.ended_ns for steps in out])
    assert set(seen.tolist()) <= set(ends)
    after = [end for end in ends if end >= seen[0]]
    assert seen.tolist() == after
    assert (durations(out)[1:] == np.diff(after)).all()
    assert {steps.source for steps in out} == {StepSource.RHYTHM}


def test_rhythm_counts_all_marks_of_a_turn(rng: np.random.Generator) -> None:
    """Three reads a step, not evenly spaced, and nothing else that is regular."""
    ends = turns(rng, 1_000, 20, 0.1)
    marks: list[Mark] = []
    for end in ends:
        marks += [(end - k, RhythmKind.BLOCK, MAIN, 0) for k in (9 * MS, 8 * MS, 7 * MS)]
    marks += noise(rng, ends[-1], 300, OTHER)
    rhythms, out = fed(marks)
    period = learnt(rhythms)
    assert period is not None
    assert (period.kind, period.marks) == (RhythmKind.BLOCK, 3)
    assert np.median(durations(out)) == pytest.approx(20 * MS, rel=0.02)


def test_rhythm_of_a_server_is_from_receive_to_send(rng: np.random.Generator) -> None:
    """Requests arrive as a Poisson process on eight connections; each asks a store, too."""
    marks: list[Mark] = []
    served: list[int] = []
    free_ns = 0
    arrival_ns = 0.0
    for _ in range(1_500):
        arrival_ns += rng.exponential(20 * MS)
        begin = max(free_ns, int(arrival_ns))
        free_ns = begin + int(4 * MS * rng.normal(1, 0.05))
        client = int(rng.integers(1, 9))
        marks += [
            (begin, RhythmKind.RECEIVE, MAIN, client),
            (begin + 1000, RhythmKind.RECEIVE, MAIN, client),
            (begin + MS, RhythmKind.SEND, MAIN, 99),
            (begin + MS + 50_000, RhythmKind.RECEIVE, MAIN, 99),
            (free_ns, RhythmKind.SEND, MAIN, client),
        ]
        served.append(free_ns)
    rhythms, out = fed(marks)
    period = learnt(rhythms)
    assert period is not None
    assert period.marks == 0
    assert set(np.concatenate([steps.ended_ns for steps in out]).tolist()) <= set(served)
    assert np.quantile(durations(out), 0.99) < 6 * MS
    assert len(durations(out)) > 0.6 * len(served)
    assert {steps.running_ns for steps in out} == {None}


def test_slow_steps_show_in_the_rhythm(rng: np.random.Generator) -> None:
    ends = turns(rng, 2_500, 10, 0.05)
    late_ns = 30 * MS
    slow = [end + late_ns * max(0, number - 2_000) for number, end in enumerate(ends)]
    _, out = fed([(end, RhythmKind.SEND, MAIN, 1) for end in slow])
    found = durations(out)
    assert np.median(found[:300]) == pytest.approx(10 * MS, rel=0.05)
    assert np.median(found[-300:]) == pytest.approx(40 * MS, rel=0.05)


def test_process_without_rhythm_has_no_steps(rng: np.random.Generator) -> None:
    rhythms, out = fed(noise(rng, 60 * SECOND, 100, MAIN))
    assert out == []
    assert learnt(rhythms) is None


def test_bursts_of_uneven_turns_are_counted(rng: np.random.Generator) -> None:
    """Two workers take turns: every other step is twice as long, each has four sends."""
    marks: list[Mark] = []
    end_ns = 0
    for number in range(2_000):
        end_ns += int((6 if number % 2 else 12) * MS * rng.normal(1, 0.1))
        marks += [(end_ns + k * 100_000, RhythmKind.SEND, MAIN, 1) for k in range(4)]
    rhythms, out = fed(marks)
    period = learnt(rhythms)
    assert period is not None
    assert period.marks == 4
    assert durations(out).mean() == pytest.approx(9 * MS, rel=0.03)


def test_burst_in_a_quiet_process_is_no_rhythm() -> None:
    burst: list[Mark] = [(at * MS, RhythmKind.SEND, MAIN, 1) for at in range(1, 200)]
    rhythms, out = fed([*burst, (18 * SECOND, RhythmKind.WAKE, MAIN, 0)])
    assert out == []
    assert learnt(rhythms) is None


def test_step_that_has_not_ended_is_told_of() -> None:
    ends = [at * 10 * MS for at in range(1, 2_001)]
    rhythms, _ = fed([(end, RhythmKind.SEND, MAIN, 1) for end in ends])
    steps = rhythms.steps(PID, START, ends[-1] + 3 * SECOND)
    assert steps is not None
    assert len(steps.ended_ns) == 0
    assert steps.running_ns == 3 * SECOND


def test_beat_that_fell_silent_is_learnt_anew() -> None:
    sends: list[Mark] = [(at * 10 * MS, RhythmKind.SEND, MAIN, 1) for at in range(1, 2_001)]
    wakes: list[Mark] = [
        (20 * SECOND + at * 20 * MS, RhythmKind.WAKE, MAIN, 0) for at in range(1, 3_001)
    ]
    rhythms, out = fed([*sends, *wakes])
    period = learnt(rhythms)
    assert period is not None
    assert period.kind is RhythmKind.WAKE
    assert out[-1].duration_ns.tolist() == [20 * MS] * len(out[-1].duration_ns)


def test_kind_with_marks_missing_is_not_counted() -> None:
    marks: list[Mark] = [(at * 10 * MS, RhythmKind.SEND, MAIN, 1) for at in range(1, 2_001)]
    marks += [(at * 10 * MS + MS, RhythmKind.BLOCK, MAIN, 0) for at in range(1, 2_001)]
    rhythms, _ = fed(marks, beyond=(0, 0, 5, 0, 0, 0))
    period = learnt(rhythms)
    assert period is not None
    assert period.kind is RhythmKind.BLOCK


def test_marks_beyond_the_bound_are_lost_steps() -> None:
    marks: list[Mark] = [(at * 10 * MS, RhythmKind.SEND, MAIN, 1) for at in range(1, 2_001)]
    rhythms, _ = fed(marks)
    rhythms.add(record([(20_010 * MS, RhythmKind.SEND, MAIN, 1)], beyond=(0, 0, 9, 0, 0, 0)))
    steps = rhythms.steps(PID, START, 21 * SECOND)
    assert steps is not None
    assert steps.lost == 9


def test_rhythm_of_a_process_that_ended_is_forgotten() -> None:
    rhythms, _ = fed([(at * 10 * MS, RhythmKind.SEND, MAIN, 1) for at in range(1, 2_001)])
    rhythms.forget(PID, START)
    rhythms.forget(PID, START)
    assert rhythms.steps(PID, START, 22 * SECOND) is None


@pytest.mark.parametrize("count", [1, 2, 5, 100, 1_001])
@pytest.mark.parametrize("share", [0.16, 0.5, 0.84])
def test_rhythm_quantile_is_that_of_numpy(
    rng: np.random.Generator, count: int, share: float
) -> None:
    ordered = np.sort(rng.integers(1, 10**12, count))
    assert quantile(ordered, share) == np.quantile(ordered, share)


def test_rhythms_are_learnt_some_a_frame_first_come_first(rng: np.random.Generator) -> None:
    """Each has more marks than a frame's share: one is learnt a second, and all are in the end."""
    rhythms, known = PeriodDetector(), dict[int, int]()
    ends = turns(rng, 5_000, 4, 0.05)
    for second in range(20):
        here = [at for at in ends if second * SECOND <= at < (second + 1) * SECOND]
        for pid in (1, 2, 3):
            part = [
                (at + wait * 1_000, RhythmKind.SEND, pid, 0) for at in here for wait in range(4)
            ]
            rhythms.add(replace(record(part), pid=pid))
        for pid in (1, 2, 3):
            if rhythms.steps(pid, START, (second + 1) * SECOND) is not None:
                known.setdefault(pid, second)
    assert known[1] < known[2] < known[3] == known[1] + 2
