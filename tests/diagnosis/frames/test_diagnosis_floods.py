"""What users of a host may do to diagnosis: floods of processes, sockets, cgroups that are gone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from collectors.binaries.proc_maps import ProgramNames
from collectors.bpf.cgroup_names import CgroupNames
from collectors.records.activity import RhythmKind, RhythmMarks, StepMarks
from collectors.steps.steps_source import StepProbe, StepsSource
from diagnosis.frames import period_detector
from diagnosis.frames.period_detector import Marks, PeriodDetector, StepPeriod, answers

S = 1_000_000_000


class _Names(CgroupNames):
    """A hierarchy of which nothing that is asked for is left."""

    scans = 0

    def __init__(self) -> None:
        super().__init__("/nowhere")

    def scan(self) -> None:
        self.scans += 1


class _Programs:
    """Threads of many processes, each with a step that has not ended and one that has."""

    def __init__(self, processes: int, cgroups: int) -> None:
        self.numbers = np.arange(1, processes + 1, dtype=np.uint64)
        self.cgroups = 1_000_000 + self.numbers % np.uint64(cgroups)
        self.forgotten: list[int] = []

    def marks(self) -> NDArray[np.uint64]:
        one = np.ones_like(self.numbers)
        process = self.numbers << np.uint64(32) | self.numbers
        columns = [one * 9, one, process, self.numbers, self.cgroups, one, one * 0]
        return np.stack(columns, axis=1).astype(np.uint64)

    def threads(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        one = np.ones_like(self.numbers)
        rows = np.stack([one * 5, one, self.numbers, self.numbers, one * 0], axis=1)
        return self.numbers << np.uint64(32) | one, rows.astype(np.uint64)

    def forget(self, key: int) -> None:
        self.forgotten.append(key)


class _Processes(ProgramNames):
    """All are there, or none; counts who is asked for."""

    def __init__(self, alive: bool) -> None:
        super().__init__()
        self._alive = alive
        self.asked: list[int] = []

    def alive(self, pid: int, _start_ns: int) -> bool:
        self.asked.append(pid)
        return self._alive

    def name(self, _pid: int, _start_ns: int) -> str:
        return "x"


def _source(programs: _Programs, alive: bool) -> tuple[StepsSource, _Names, _Processes]:
    source = StepsSource([StepProbe("/nowhere/lib.so", "step")])
    names, processes = _Names(), _Processes(alive)
    source._programs, source._cgroups, source._names = programs, names, processes  # type: ignore[assignment]
    return source, names, processes


def test_steps_look_for_cgroups_that_are_gone_once_for_all_processes() -> None:
    source, names, _ = _source(_Programs(processes=50, cgroups=50), alive=True)
    told = [one for _ in range(3) for one in source.drain(0)]
    assert len(told) == 150
    assert {one.cgroup for one in told} >= {"gone:1000001", "gone:1000049"}
    assert names.scans == 1


def test_steps_of_a_flood_of_processes_are_those_of_the_oldest() -> None:
    source, _, processes = _source(_Programs(processes=4_000, cgroups=1), alive=True)
    told = list(source.drain(0))
    assert [one.pid for one in told] == list(range(1, 513))
    assert all(isinstance(one, StepMarks) for one in told)
    assert processes.asked == list(range(1, 513))
    list(source.drain(0))
    assert processes.asked[512:] == list(range(513, 1_025))


def test_steps_of_a_flood_of_processes_that_ended_are_forgotten_by_turns() -> None:
    programs = _Programs(processes=1_200, cgroups=1)
    source, _, _ = _source(programs, alive=False)
    for _ in range(3):
        list(source.drain(0))
    assert len(set(programs.forgotten)) == 1_200


def _flood(count: int, sockets: int) -> Marks:
    rng = np.random.default_rng(7)
    kinds = np.array([RhythmKind.SEND, RhythmKind.RECEIVE, RhythmKind.WAKE])
    return Marks(
        np.sort(rng.integers(0, 20 * S, count)),
        kinds[rng.integers(0, 3, count)].astype(np.uint8),
        rng.integers(1, 9, count),
        rng.integers(0, sockets, count),
    )


def _answers_one_by_one(marks: Marks) -> list[tuple[int, int]]:
    """What is meant: each socket by itself, begin of a run of receives to the send after it."""
    found: list[tuple[int, int]] = []
    for socket in set(marks.socket.tolist()):
        runs: list[tuple[int, bool]] = []
        for at, kind, whose in zip(marks.at_ns, marks.kind, marks.socket, strict=True):
            if whose == socket and kind in {RhythmKind.SEND, RhythmKind.RECEIVE}:
                send = kind == RhythmKind.SEND
                if not runs or runs[-1][1] != send:
                    runs.append((int(at), send))
        pairs = list(pairwise(runs))
        thought = sum(end[0] - begin[0] for begin, end in pairs if end[1])
        waited = sum(end[0] - begin[0] for begin, end in pairs if not end[1])
        if thought <= waited:
            found += [(end[0], max(end[0] - begin[0], 1)) for begin, end in pairs if end[1]]
    return sorted(found)


@pytest.mark.parametrize("sockets", [1, 7, 150])
def test_answers_are_those_of_each_socket_by_itself(sockets: int) -> None:
    marks = _flood(400, sockets)
    ended, lasted = answers(marks)
    assert sorted(zip(ended.tolist(), lasted.tolist(), strict=True)) == _answers_one_by_one(marks)
    assert (np.diff(ended) >= 0).all()


def test_answers_of_nothing_are_none() -> None:
    ended, lasted = answers(_flood(0, 1))
    assert len(ended) == len(lasted) == 0


def test_answers_on_thousands_of_sockets_are_found_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One pass for each socket took 0.7 s a second and process with 20,000 of them."""
    passes: list[int] = []
    take = Marks.take

    def counted(marks: Marks, rows: NDArray[np.bool_]) -> Marks:
        passes.append(len(rows))
        return take(marks, rows)

    monkeypatch.setattr(period_detector.Marks, "take", counted)
    answers(_flood(40_000, 20_000))
    assert len(passes) <= 2


def test_rhythms_of_a_few_processes_are_looked_for_at_a_time_and_all_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def learn(marks: Marks, now_ns: int, _missing: object) -> StepPeriod | None:
        tried.append(now_ns)
        who.append(int(marks.thread[0]))
        return StepPeriod(RhythmKind.WAKE, len(tried), 1, S, 0.1)  # another one each time

    who: list[int] = []
    monkeypatch.setattr(period_detector, "learn", learn)
    rhythms = PeriodDetector()
    for second in range(60):
        for pid in range(1, 65):
            rhythms.add(_marks(pid, second * S))
        for pid in range(1, 65):
            rhythms.steps(pid, pid, (second + 1) * S)
    assert max(np.unique(tried, return_counts=True)[1]) <= 3
    assert set(who) == set(range(1, 65))


def _marks(pid: int, at_ns: int) -> RhythmMarks:
    one = np.ones(1, np.int64)
    kind = np.full(1, RhythmKind.WAKE, np.uint8)
    nothing = (0,) * len(RhythmKind)
    return RhythmMarks(
        pid=pid, start_ns=pid, cgroup="/x", program="x", at_ns=one * at_ns, kind=kind,
        thread=one * pid, value=one, socket=one, round_trip_us=one, beyond=nothing,
    )  # fmt: skip
