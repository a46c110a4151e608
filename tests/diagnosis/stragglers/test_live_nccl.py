"""Ranks that call NCCL, watched by real uprobes on stub libraries: who waited for whose host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diagnosis.stragglers.collectives import CallRole, role_of
from diagnosis.stragglers.job_watch import JobWatch, Watched, find_ranks
from tests.diagnosis.stragglers.nccl_kit import StubJob, stub_job

pytestmark = [
    pytest.mark.root,
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, as make tools installs it"),
]
WATCH_S = 5.5


def watched(watch: JobWatch, job: StubJob, host_ms: list[float], gpu_ms: list[float]) -> Watched:
    """Let what was steered take hold, then watch."""
    job.steer(host_ms, gpu_ms)
    watch.watch(0.6)
    since_ns = watch.now_ns()
    watch.watch(WATCH_S)
    assert watch.live.absent == []
    return watch.found(since_ns)


def test_nccl_ranks_wait_for_the_one_whose_host_comes_late(tmp_path: Path) -> None:
    with stub_job(tmp_path, 2) as job, JobWatch(find_ranks(job.pattern)) as watch:
        assert {role_of(one.title) for one in watch.probes} == {CallRole.ENQUEUES, CallRole.WAITS}
        assert len([one for one in watch.probes if role_of(one.title) is CallRole.ENQUEUES]) == 1
        late_host = watched(watch, job, [10.0, 70.0], [5.0, 5.0])
        late_gpu = watched(watch, job, [10.0, 10.0], [5.0, 65.0])
    calls = late_host.by_calls
    assert calls is not None
    assert [one.rank for one in calls.slow] == [1]
    waits = calls.waits
    assert waits.calls > 50
    assert waits.impossible == 0
    per_call_ms = 1e3 * waits.direct[0, 1] / waits.calls
    assert 45 < per_call_ms < 75, "it waited for the 60 ms that the other's host came later"
    assert waits.direct[1, 0] < 0.1 * waits.direct[0, 1]
    # A GPU that is slow by itself keeps all hosts equally long: nobody is accused.
    assert late_gpu.by_calls is not None
    assert late_gpu.by_calls.slow == ()
    assert late_gpu.by_calls.waits.direct.sum() < 0.1 * waits.direct.sum()
