"""Collectives that return at once, joined with the wait that follows; pure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from collectors.records.activity import StepMarks, StepSource
from diagnosis.stragglers.collectives import CallRole, collective_probes, role_of
from diagnosis.stragglers.judge import judge
from diagnosis.stragglers.marked_calls import MarkedCalls, meetings, waiting_since

MS = 1_000_000
RANKS = ("/job/rank0", "/job/rank1")


def ns(*ms: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([round(one * MS) for one in ms], dtype=np.int64)


def test_collectives_meet_in_the_longest_wait_before_the_next() -> None:
    called = ns(10, 11, 12, 40, 70)
    entered, left = ns(2, 13, 14, 30, 41), ns(9, 13.1, 29, 31, 60)
    found = meetings(called, entered, left)
    # 2 to 9 is before any; three buckets share a wait; the call at 70 has none yet.
    assert found.called.tolist() == ns(12, 40).tolist()
    assert found.entered.tolist() == ns(14, 41).tolist()
    assert found.left.tolist() == ns(29, 60).tolist()
    assert len(meetings(ns(), entered, left).left) == 0
    assert len(meetings(called, ns(), ns()).left) == 0


def test_collectives_wait_in_a_nested_call_once() -> None:
    """The runtime's wait calls the driver's."""
    found = meetings(ns(10), ns(12, 12.1), ns(30, 29.9))
    assert (found.entered.tolist(), found.left.tolist()) == ([12 * MS], [30 * MS])


def test_peers_wait_from_when_their_host_stopped_for_its_gpu() -> None:
    called = np.stack([ns(10, 10, 10), ns(30, 30, 30)])
    entered = np.stack([ns(12, 29, 35), ns(31, 60, 31)])
    came = waiting_since(called, entered)
    assert (came[1] - came[0]).tolist() == [18 * MS, 1 * MS, 1], "none, by a nanosecond"


def marks(rank: int, role: CallRole, begins: list[float], ends: list[float]) -> StepMarks:
    ended = ns(*ends)
    return StepMarks(
        100 + rank, 5, RANKS[rank], "rank", f"{role} lib:function", StepSource.UPROBE, ended,
        ended - ns(*begins), 0, None,
    )  # fmt: skip


def test_marked_calls_of_a_gpu_tell_whose_host_came_late() -> None:
    log = MarkedCalls(RANKS)
    starts = [1000.0 + 50 * step for step in range(100)]
    for rank, host_ms in enumerate((10.0, 35.0)):
        calls = [start + host_ms for start in starts]
        log.add(marks(rank, CallRole.ENQUEUES, [start - 1 for start in calls], calls))
        waits = [call + 1 for call in calls]
        log.add(marks(rank, CallRole.WAITS, waits, [start + 40 for start in starts]))
    job = log.job()
    assert job is not None
    judged = judge(job)
    assert [one.rank for one in judged.slow] == [1]
    assert judged.waits.calls == 100
    assert judged.waits.direct[0, 1] == pytest.approx(100 * 0.024)
    assert judged.waits.direct[1, 0] == 0
    assert log.counts == {0: 100, 1: 100}


def test_collective_probes_of_nccl_are_those_that_all_must_enter(tmp_path: Path) -> None:
    source = tmp_path / "stub.c"
    names = {
        "libnccl.so.2": ("ncclAllReduce", "pncclAllReduce", "ncclSend", "ncclCommAbort"),
        "libcudart.so.12": ("cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaMalloc"),
        "libcuda.so.1": ("cuStreamSynchronize",),
    }
    text = ""
    for library, symbols in names.items():
        source.write_text("".join(f"void {s}(void) {{ }}\n" for s in symbols if s[0] != "p"))
        if "pncclAllReduce" in symbols:
            with source.open("a") as file:
                file.write('void pncclAllReduce(void) __attribute__((alias("ncclAllReduce")));')
        try:
            subprocess.run(
                ["gcc", "-shared", "-o", tmp_path / library, source], check=True, timeout=60
            )
        except FileNotFoundError:
            pytest.skip("needs gcc, as make tools installs it")
        text += f"7f00-7f10 r-xp 00000000 08:01 42   {tmp_path / library}\n"
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7/root").symlink_to("/")
    (proc / "7/maps").write_text(text)
    found = {one.symbol.lstrip("p"): one for one in collective_probes([7], str(proc))}
    assert set(found) == {"ncclAllReduce", "cudaStreamSynchronize"}
    called, waited = found["ncclAllReduce"], found["cudaStreamSynchronize"]
    assert (role_of(called.title), called.returns) == (CallRole.ENQUEUES, False)
    assert (role_of(waited.title), waited.returns) == (CallRole.WAITS, True)
    assert role_of("libgloo.so.0:allreduce") is CallRole.MEETS
