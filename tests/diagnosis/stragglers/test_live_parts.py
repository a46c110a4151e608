"""The pure parts of watching live ranks: marks of collectives, busy seconds, finding ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collectors.records.activity import StepMarks, StepSource
from diagnosis.frames.frame import HostSample
from diagnosis.stragglers import collectives
from diagnosis.stragglers.job_watch import NoRanks, find_ranks
from diagnosis.stragglers.judge import judge
from diagnosis.stragglers.marked_calls import BusySeconds, MarkedCalls, TimeSpent

MS = 1_000_000
RANKS = ("/job/rank0", "/job/rank1", "/job/rank2", "/job/rank3")


def marks(rank: int, entered: list[int], left: list[int], lost: int = 0, pid: int = 0) -> StepMarks:
    ended = np.array(left, dtype=np.int64)
    return StepMarks(
        pid or 100 + rank, 5, RANKS[rank] if rank < 4 else "/other", "python3", "gloo",
        StepSource.UPROBE, ended, ended - np.array(entered, dtype=np.int64), lost, None,
    )  # fmt: skip


def lockstep(calls: int, slow: int = -1, work_ms: int = 20) -> list[tuple[list[int], list[int]]]:
    """When each rank entered and left; the slow one works twice as long."""
    entered: list[list[int]] = [[], [], [], []]
    left: list[list[int]] = [[], [], [], []]
    now = 1_000_000 * MS
    for call in range(calls):
        came = [now + (2 if rank == slow else 1) * work_ms * MS + rank * MS for rank in range(4)]
        now = max(came) + MS
        for rank in range(4):
            entered[rank].append(came[rank])
            left[rank].append(now + (call % 3) * rank * 1000)
    return list(zip(entered, left, strict=True))


def capped(calls: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """When each rank entered and left, with 40 ms of CPU in each period of 100, not at one time."""
    rng = np.random.default_rng(seed)
    offset_ns = rng.integers(0, 100 * MS, 4)
    spent: list[dict[int, int]] = [{}, {}, {}, {}]

    def worked(rank: int, now_ns: int, cpu_ns: int) -> int:
        now_ns += offset_ns[rank]
        while True:
            period = now_ns // (100 * MS)
            left_ns = min(40 * MS - spent[rank].get(period, 0), (period + 1) * 100 * MS - now_ns)
            taken = min(cpu_ns, left_ns)
            spent[rank][period] = spent[rank].get(period, 0) + taken
            now_ns, cpu_ns = now_ns + taken, cpu_ns - taken
            if not cpu_ns:
                return int(now_ns - offset_ns[rank])
            now_ns = (period + 1) * 100 * MS

    entered: list[list[int]] = [[], [], [], []]
    left: list[list[int]] = [[], [], [], []]
    now = [1_000_000 * MS] * 4
    for _ in range(calls):
        works = rng.integers(9 * MS, 11 * MS, 4)
        came = [worked(rank, now[rank], int(works[rank])) for rank in range(4)]
        ends = rng.integers(10 * MS, 40 * MS, 4)
        now = [worked(rank, max(came), int(ends[rank])) for rank in range(4)]
        for rank in range(4):
            entered[rank].append(came[rank])
            left[rank].append(now[rank])
    return list(zip(entered, left, strict=True))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("unseen", [0, 6], ids=["seen alike", "seen later"])
def test_calls_of_capped_ranks_are_matched_though_some_leave_late(seed: int, unseen: int) -> None:
    """Who has used up its quota is still in a call when others have begun the next.

    unseen   calls that were over before rank 2 was looked at
    """
    log = MarkedCalls(RANKS)
    seen = capped(60, seed)
    until_ns = seen[0][1][-5]
    for rank, (entered, left) in enumerate(seen):
        first, last = unseen if rank == 2 else 0, int(np.searchsorted(left, until_ns))
        log.add(marks(rank, entered[first:last], left[first:last]))
    job = log.job(since_ns=seen[0][0][0 if unseen else 4])
    assert job is not None
    waits = judge(job).waits
    assert waits.impossible == 0
    assert waits.calls >= 45


def test_marked_calls_tell_who_worked_and_who_waited() -> None:
    log = MarkedCalls(RANKS)
    for rank, (entered, left) in enumerate(lockstep(200, slow=1)):
        log.add(marks(rank, entered[:90], left[:90]))
        log.add(marks(rank, entered[90:], left[90:]))
    log.add(marks(4, [1], [2]))
    assert log.counts == dict.fromkeys(range(4), 200)
    job = log.job()
    assert job is not None
    judged = judge(job)
    assert [one.rank for one in judged.slow] == [1]
    assert judged.waits.calls == 200
    assert judged.waits.direct[0, 1] == pytest.approx(200 * 0.021)
    assert judged.waits.direct[1].sum() == 0


def test_marked_calls_are_matched_where_ranks_were_seen_from_other_calls_on() -> None:
    log = MarkedCalls(RANKS)
    for rank, (entered, left) in enumerate(lockstep(200, slow=2)):
        log.add(marks(rank, entered[rank:], left[rank:]))
    job = log.job()
    assert job is not None
    judged = judge(job)
    assert [one.rank for one in judged.slow] == [2]
    assert judged.waits.calls == 197
    assert judged.waits.impossible == 0


def test_marked_calls_forget_what_came_before_a_loss_or_another_process() -> None:
    log = MarkedCalls(RANKS)
    for rank, (entered, left) in enumerate(lockstep(60)):
        log.add(marks(rank, entered, left))
    entered, left = lockstep(80)[1]
    log.add(marks(1, entered[60:], left[60:], lost=3))
    assert log.counts[1] == 20
    log.add(marks(1, entered[70:], left[70:], pid=999))
    assert log.counts[1] == 10
    assert log.job(since_ns=left[-1] + 1) is None


def test_marked_calls_of_ranks_that_never_meet_are_no_job() -> None:
    log = MarkedCalls(RANKS)
    for rank in range(3):
        entered, left = lockstep(50)[rank]
        log.add(marks(rank, entered, left))
    assert log.job() is None


def frame(second: int, **signals: list[float]) -> HostSample:
    """One second; a value a rank of each signal."""
    cgroups = {
        cgroup: {name: values[rank] for name, values in signals.items()}
        for rank, cgroup in enumerate(RANKS)
    }
    return HostSample(second * 10**9, 10**9, {}, np.zeros((1, 10), dtype=np.float32), {}, cgroups)


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ({"cpu_ms_per_s": [200, 400, 200, 200], "throttled_delay_ms_per_s": [0, 500, 0, 0]},
         TimeSpent.COMPUTE),
        ({"cpu_ms_per_s": [200, 200, 200, 200], "throttled_delay_ms_per_s": [0, 500, 0, 0]},
         TimeSpent.THROTTLED),
        ({"cpu_ms_per_s": [200, 205, 200, 200], "run_delay_ms_per_s": [20, 500, 20, 20]},
         TimeSpent.CONTENDED),
        ({"cpu_ms_per_s": [200, 200, 200, 200], "block_wait_ms_per_s": [10, 600, 10, 10]},
         TimeSpent.DISK),
    ],
)  # fmt: skip
def test_busy_seconds_find_the_slow_rank_and_what_its_time_goes_to(
    signals: dict[str, list[float]], reason: TimeSpent
) -> None:
    busy = BusySeconds(RANKS)
    for second in range(1, 9):
        busy.add(frame(second, **signals))
    job = busy.job()
    assert job is not None
    assert [one.rank for one in judge(job).slow] == [1]
    assert busy.reason(1) is reason
    assert busy.reason(0) is None


def test_busy_seconds_of_ranks_that_spin_accuse_nobody() -> None:
    busy = BusySeconds(RANKS)
    for second in range(1, 9):
        busy.add(frame(second, cpu_ms_per_s=[1000, 1000, 1000, 1000]))
    job = busy.job()
    assert job is not None
    assert judge(job).slow == ()
    assert BusySeconds(RANKS).job() is None


def test_ranks_are_found_by_cgroup_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 10):
        (tmp_path / f"job/rank{rank}").mkdir(parents=True)
        (tmp_path / f"job/rank{rank}/cgroup.procs").write_text(f"{40 + rank}\n")
    (tmp_path / "job/rank3").mkdir()
    (tmp_path / "job/rank3/cgroup.procs").write_text("")
    found = find_ranks("/job/rank*", str(tmp_path))
    assert [one.cgroup for one in found] == [f"/job/rank{rank}" for rank in (0, 1, 2, 10)]
    assert found[3].pids == (50,)
    with pytest.raises(NoRanks, match="got 0"):
        find_ranks("/train/*", str(tmp_path))


def test_ranks_are_found_beside_cgroups_that_vanish_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        (tmp_path / f"job/rank{rank}").mkdir(parents=True)
        (tmp_path / f"job/rank{rank}/cgroup.procs").write_text(f"{40 + rank}\n")
    (tmp_path / "job/rank1/cgroup.procs").unlink()
    scan, gone = os.scandir, tmp_path / "job/rank3"

    def late(path: str) -> Iterator[os.DirEntry[str]]:
        if path == str(gone):
            (gone / "cgroup.procs").unlink()
            gone.rmdir()
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    found = find_ranks("/job/rank*", str(tmp_path))
    assert [one.cgroup for one in found] == ["/job/rank0", "/job/rank2"]


def test_collectives_are_found_in_the_libraries_of_a_process(tmp_path: Path) -> None:
    source = tmp_path / "gloo.c"
    source.write_text("void _ZN4gloo9allreduceERKNS_16AllreduceOptionsE(void) {}\nint other;\n")
    library = tmp_path / "libgloo.so.0"
    try:
        subprocess.run(["gcc", "-shared", "-o", library, source], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs gcc, as make tools installs it")
    proc = tmp_path / "proc"
    for pid in ("7", "8"):
        (proc / pid).mkdir(parents=True)
        (proc / pid / "root").symlink_to("/")
        maps = f"7f00-7f10 r-xp 00000000 08:01 42   {library}\n"
        maps += "7f20-7f30 r-xp 00000000 08:01 43   /nowhere/libgloo.so.0\n"
        (proc / pid / "maps").write_text(maps)
    (probe,) = collectives.collective_probes([7, 8, 9], str(proc))
    assert probe.symbol == "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"
    assert probe.returns
    assert probe.path.endswith("/7/root" + str(library))
