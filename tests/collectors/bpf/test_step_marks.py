"""Step marks of real processes, whose steps are known by number and least length."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from collectors.bpf.uprobes import UprobeWay
from collectors.interface import SourceUnavailable
from collectors.records.activity import RhythmKind, RhythmMarks, StepMarks, StepSource
from collectors.steps.steps_source import MOST_MARKS_A_DRAIN, RING_BYTES, StepProbe, StepsSource
from tests.bpf_kit import cgroup

pytestmark = [
    pytest.mark.root,
    pytest.mark.kernel,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, as make tools installs it"),
]

STEP_NS = 2_000_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("steps") / "stepper"
    source = Path(__file__).with_name("stepper.c")
    command = ["gcc", "-O1", "-pthread", "-o", str(built), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return built


@contextmanager
def running(*probes: StepProbe) -> Iterator[StepsSource]:
    source = StepsSource(probes)
    assert source.probe() is None
    source.start()
    try:
        yield source
    finally:
        source.stop()


class Stepper:
    def __init__(self, program: Path, steps: int, step_ns: int = 0, threads: int = 1) -> None:
        words = [str(program), str(steps), str(step_ns), str(threads)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        self.tell()
        assert self.process.stdout
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.tell()
        self.process.communicate(timeout=10)

    def tell(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def drain(source: StepsSource) -> list[StepMarks]:
    found = list(source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
    return [marks for marks in found if isinstance(marks, StepMarks)]


@pytest.mark.parametrize("way", UprobeWay)
def test_steps_between_calls_and_of_calls_are_counted_exactly(
    way: UprobeWay, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.steps.steps_source.uprobe_way", lambda: way)
    between = StepProbe(str(program), "pointillist_step")
    within = StepProbe(str(program), "pointillist_work", returns=True, name="work")
    with cgroup("cpu") as group, running(between, within) as source:
        stepper = Stepper(program, 50, STEP_NS)
        group.set("cgroup.procs", stepper.process.pid)
        begun_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        stepper.go()
        ended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        seen = {marks.probe: marks for marks in drain(source)}
        later = drain(source)
        stepper.end()
        after = drain(source)
    assert seen.keys() == {"stepper:pointillist_step", "work"}
    assert len(seen["stepper:pointillist_step"].ended_ns) == 49
    assert len(seen["work"].ended_ns) == 50
    for marks in seen.values():
        assert (marks.pid, marks.program) == (stepper.process.pid, "stepper")
        assert (marks.cgroup, marks.lost) == (group.name, 0)
        assert marks.source is StepSource.UPROBE
        assert (np.diff(marks.ended_ns) >= STEP_NS).all()
        assert (marks.duration_ns >= STEP_NS).all()
        assert begun_ns < marks.ended_ns[0] < marks.ended_ns[-1] < ended_ns
    steps = seen["stepper:pointillist_step"]
    assert (np.diff(steps.ended_ns) == steps.duration_ns[1:]).all()
    assert steps.open_since_ns == steps.ended_ns[-1]
    assert seen["work"].open_since_ns is None
    # The step that has not ended is told of as long as its process lives.
    assert [(one.probe, len(one.ended_ns)) for one in later] == [("stepper:pointillist_step", 0)]
    assert later[0].open_since_ns == steps.open_since_ns
    assert after == []


def test_steps_of_two_threads_are_kept_apart(program: Path) -> None:
    with running(StepProbe(str(program), "pointillist_step")) as source:
        stepper = Stepper(program, 20, STEP_NS, threads=2)
        stepper.go()
        (marks,) = drain(source)
        stepper.end()
    assert len(marks.ended_ns) == 2 * 19
    assert (marks.duration_ns >= STEP_NS).all()


def test_steps_without_room_are_counted_as_lost(program: Path) -> None:
    with running(StepProbe(str(program), "pointillist_step")) as source:
        stepper = Stepper(program, 20_001)
        stepper.go()
        (first,) = drain(source)
        assert len(first.ended_ns) == RING_BYTES // 64 - 1  # a ring is never quite full
        assert first.lost == 20_000 - len(first.ended_ns)
        stepper.end()
        again = Stepper(program, 11)
        again.go()
        (second,) = drain(source)
        again.end()
    assert (len(second.ended_ns), second.lost) == (10, 0)


def test_calls_of_which_several_make_a_step_are_marks_of_the_rhythm(program: Path) -> None:
    path, kind = str(program), RhythmKind.COLLECTIVE
    with running(StepProbe(path, "pointillist_work", returns=True, kind=kind)) as source:
        stepper = Stepper(program, 20, STEP_NS)
        stepper.go()
        (marks,) = source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        stepper.end()
    assert isinstance(marks, RhythmMarks)
    assert marks.kind.tolist() == [kind] * 20
    assert (marks.value >= STEP_NS).all()
    assert set(marks.thread.tolist()) == {stepper.process.pid}


def test_function_that_is_called_too_often_is_left(program: Path) -> None:
    with running(StepProbe(str(program), "pointillist_step")) as source:
        for _ in range(3):
            assert source.absent == []
            stepper = Stepper(program, MOST_MARKS_A_DRAIN + 2)
            stepper.go()
            drain(source)
            stepper.end()
        (absence,) = source.absent
        assert "more than 4000 calls" in absence.reason
        again = Stepper(program, 10)
        again.go()
        assert all(len(marks.ended_ns) == 0 for marks in drain(source))
        again.end()


def test_probe_of_a_missing_file_waits_for_it(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "later"
    with running(StepProbe(str(path), "pointillist_step")) as source:
        assert [a.source for a in source.absent] == ["later:pointillist_step"]
        shutil.copy(program, path)
        drain(source)
        assert source.absent == []
        stepper = Stepper(path, 3)
        stepper.go()
        (marks,) = drain(source)
        stepper.end()
    assert len(marks.ended_ns) == 2


def test_probe_of_a_missing_function_says_so(program: Path) -> None:
    with running(StepProbe(str(program), "no_such_step")) as source:
        (absence,) = source.absent
    assert "expected a function no_such_step" in absence.reason


def test_drain_of_a_stopped_source_is_refused() -> None:
    source = StepsSource([])
    assert source.probe() == "steps: no function is named"
    with pytest.raises(SourceUnavailable):
        source.drain(0)
