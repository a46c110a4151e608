"""A slice of the fault bench: real faults on a real workload, seen by the real sources."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.diagnosis import cgroups, network
from bench.diagnosis.leftovers import BenchBusyError, only_bench
from bench.diagnosis.plan import Run
from bench.diagnosis.recording import RunRefusedError, record
from bench.diagnosis.workload import STEP_LOOP, Workload, start_workload
from bench.record import ROOT
from diagnosis.frames.recording import read_recording
from tests.wait_kit import until

pytestmark = [pytest.mark.root, pytest.mark.live]


def left_over() -> list[str]:
    """What of the bench is on this machine."""
    groups = [
        str(path)
        for hierarchy in cgroups.HIERARCHIES
        for path in (cgroups.ROOT / hierarchy).glob(cgroups.PARENT)
    ]
    return groups + sorted(network.ours())


@pytest.fixture
def step_loop(tmp_path: Path) -> Iterator[Workload]:
    """A step loop in its namespaces and cgroups; nothing of it is left afterwards."""
    try:
        with only_bench():
            work = start_workload(STEP_LOOP, tmp_path / "work", seed=5)
            try:
                yield work
            finally:
                work.close()
    except BenchBusyError as error:
        pytest.skip(str(error))
    assert left_over() == []


def test_fault_bench_records_two_faults_that_show_their_effects(
    step_loop: Workload, tmp_path: Path
) -> None:
    run = Run(STEP_LOOP, ("low_quota", "low_rate"), 2, 5, 4.0, 5.0, 1.0, stagger_s=1.0)
    path = tmp_path / "run.parquet"
    record(run, [step_loop], path)
    found = read_recording(path)
    meta, subject = found.meta, step_loop.job.path
    assert [span["effect"]["shown"] for span in meta["spans"]] == [True, True]
    assert meta["class"] == "cgroup_throttling+nic_limit_or_loss"
    assert meta["impact"][subject]["passed"]
    assert meta["sources"]["absent"] == {}
    start_ns = meta["spans"][0]["start_ns"]
    throttled = [
        frame.subjects[subject].signals["throttled_ms_per_s"] > 0 for frame in found.frames
    ]
    before = [frame.boottime_ns <= start_ns for frame in found.frames]
    assert not any(one for one, early in zip(throttled, before, strict=True) if early)
    # Once the link is slow too the job waits for it, and may need less than its quota.
    assert any(throttled)
    # Between the first step that the probes saw and the last they saw each that the workload says
    # it made. One more or less at either edge: the two write its end one after the other.
    seen = np.concatenate(
        [steps.ended_ns for frame in found.frames if (steps := frame.subjects[subject].steps)]
    )
    truth = step_loop.log.between(int(seen[0]), int(seen[-1]))
    assert abs(len(seen) - len(truth)) <= 2
    # A busy machine drains some steps before or after a frame reads the clock, but not many.
    first, last = found.frames[0], found.frames[-1]
    whole = step_loop.log.between(first.boottime_ns - first.span_ns, last.boottime_ns)
    assert 10 * len(truth) >= 9 * len(whole)
    assert not list(tmp_path.glob("*.part"))


def test_fault_bench_refuses_a_run_whose_fault_was_not_there(
    step_loop: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.diagnosis.faults.resources.LowQuota.grades", (50.0, 50.0, 50.0))
    run = Run(STEP_LOOP, ("low_quota",), 1, 5, 1.0, 1.0, 0.0)
    with pytest.raises(RunRefusedError, match="low_quota shows no effect"):
        record(run, [step_loop], tmp_path / "run.parquet")
    assert list(tmp_path.glob("run.*")) == []


def test_fault_bench_leaves_nothing_when_it_is_killed(tmp_path: Path) -> None:
    lines = (
        "import time",
        "from pathlib import Path",
        "from bench.diagnosis.leftovers import BenchBusyError, only_bench",
        "from bench.diagnosis.workload import start_workload",
        "try:",
        "    with only_bench():",
        f"        start_workload('step_loop', Path({str(tmp_path)!r}) / 'work', 5)",
        "        print('running', flush=True)",
        "        time.sleep(60)",
        "except BenchBusyError:",
        "    print('busy', flush=True)",
    )
    child = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    said = child.stdout.readline().strip()
    if said == "busy":
        child.wait()
        pytest.skip("another fault bench runs on this machine")
    assert said == "running"
    assert left_over() != []
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    until(lambda: left_over() == [])
