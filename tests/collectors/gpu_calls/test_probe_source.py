"""The probe source on real processes: what it says of launches, copies, waits; what it leaves."""

from __future__ import annotations

import subprocess
import threading
import time
from math import inf
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.governor import GovernorSettings
from collectors.gpu_calls.gpu_probes import ProbesSection
from collectors.interface import SourceUnavailable
from collectors.records.activity import GpuCoverage, KernelActivity, Observation
from collectors.records.gpu_calls import (
    CountedCalls,
    Direction,
    GovernorState,
    GpuCalls,
    ProbeGroup,
)
from tests.probe_source_kit import ONLY_OURS, OURS, Watched, own_caller, watching
from tests.probes_kit import Stubs, begin, waiting
from tests.wait_kit import until

pytestmark = [pytest.mark.root, pytest.mark.kernel]

GOVERNED = GovernorSettings(
    budget=0.02, period_ns=(1_000_000_000, 2_000_000_000), least_window_ns=10**7
)
"""Shorter periods, so that a test sees several; the stall weighs more in them, hence 2 %."""


def calls_of(watched: Watched, pid: int) -> list[GpuCalls]:
    """The local records in which a process stands."""
    found = [one for one in watched.records if isinstance(one, GpuCalls)]
    return [one for one in found if any(p.process.pid == pid for p in one.processes)]


def spread(watched: Watched) -> dict[int, int]:
    """Launches by GPU."""
    return {one.gpu: one.count for one in watched.records if isinstance(one, KernelActivity)}


def test_source_counts_launches_by_family_of_a_file_never_seen_before(
    stubs: Stubs, tmp_path: Path
) -> None:
    program = own_caller(stubs, tmp_path, static=True)
    with watching() as watched, watched.waiting(program, "families", 701, 211, 89) as child:
        begin(child)
        watched.drain()
        assert watched.launches() == {"gemm": 701, "softmax": 211, "attention": 89}
        (record,) = calls_of(watched, child.pid)
        (process,) = [one for one in record.processes if one.process.pid == child.pid]
        assert process.identity.name == OURS
        assert process.launches.value == 1001
        assert process.launches.share == 1.0
        names = {one.kernel for one in record.kernels if one.process.pid == child.pid}
        assert "ampere_sgemm_128x64_nn" in names


def test_source_spreads_launches_over_the_gpus_that_the_driver_names(
    stubs: Stubs, tmp_path: Path
) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    with waiting(program, "families", 6, 0, 0) as named:
        users = {1: [named.pid], 3: [named.pid, 999_999]}
        with (
            watching(gpus=4, users=users) as watched,
            watched.waiting(program, "families", 8) as unnamed,
        ):
            begin(named)
            watched.drain()
            assert spread(watched) == {1: 3, 3: 3}
            watched.records.clear()
            begin(unnamed)
            watched.drain()
            assert spread(watched) == {0: 2, 1: 2, 2: 2, 3: 2}
            # On GPU 3 the driver names a process whose calls nobody sees.
            covered = {r.gpu for r in watched.records if isinstance(r, GpuCoverage)}
            assert covered == {0, 1, 2}


def test_source_fills_copies_collectives_and_waits(stubs: Stubs, tmp_path: Path) -> None:
    libraries = ("libcudart", "libcuda.so", "libnccl")
    program = own_caller(stubs, tmp_path, *libraries)
    with watching() as watched:
        for scenario in ("copies", "collectives", "waits"):
            with watched.waiting(program, scenario, files=len(libraries)) as child:
                begin(child)
                watched.drain()
        said = [one for one in watched.records if isinstance(one, Observation)]
        seen = {(one.section, one.cell) for one in said if one.value}
        assert ("collectives", "time_in_calls") in seen
        assert ("synchronisation_waits", "stream") in seen
        totals = {
            (row.call, row.calls.seen, row.bytes)
            for record in watched.of(GpuCalls)
            if isinstance(record, GpuCalls)
            for process in record.processes
            for row in process.collectives
        }
        assert ("all_reduce", 2, 2000 + 8000) in totals
        bins = {
            family: sorted(b for r in of for b in r.copy_log2_bins)
            for family in ("memcpy", "memset")
            if (of := [r for r in watched.records if isinstance(r, KernelActivity)
                       and r.family == family])
        }  # fmt: skip
        assert (16, 2) in bins["memcpy"] or bins["memcpy"].count((16, 1)) == 2
        assert bins["memset"] == []
        directions = {
            row.direction
            for record in watched.of(GpuCalls)
            if isinstance(record, GpuCalls)
            for process in record.processes
            for row in process.copies
        }
        assert directions == set(Direction)


def test_source_leaves_out_whom_it_was_told(stubs: Stubs, tmp_path: Path) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    settings = ProbesSection(budget_percent=50.0, leave_out=(OURS, *ONLY_OURS))
    with (
        watching(settings=settings) as watched,
        watched.waiting(program, "families", 5, 5, 5) as child,
    ):
        begin(child)
        watched.drain()
        assert not watched.of(KernelActivity)
        assert not calls_of(watched, child.pid)


def counted(watched: Watched, pid: int) -> CountedCalls:
    """Launches of a process over all records."""
    rows = [
        process.launches
        for record in calls_of(watched, pid)
        for process in record.processes
        if process.process.pid == pid
    ]
    return CountedCalls.total(rows, min(row.share for row in rows))


def drained(watched: Watched, seconds: float) -> None:
    """Drain twice a second."""
    for _ in range(round(2 * seconds)):
        time.sleep(0.5)
        watched.drain()


def drained_whole(watched: Watched) -> None:
    """Drain until all that has happened so far is in records: to the end of the period."""
    now_ns, keeper = boottime_ns(), watched.source.running.keeper
    while keeper.period.begin_ns < now_ns:
        drained(watched, 0.5)


def start(child: subprocess.Popen[str]) -> None:
    """Let a waiting caller begin."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.mark.release
def test_governor_bounds_the_cost_and_the_interval_holds_the_truth(
    stubs: Stubs, tmp_path: Path
) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    with watching(governor=GOVERNED) as watched:
        with watched.waiting(program, "steady", 40_000, 11_000, 5_000) as child:
            start(child)
            drained(watched, 11.0)
            assert child.stdout is not None
            truth = int(child.stdout.readline())
            drained_whole(watched)
        launches = counted(watched, child.pid)
        low, high = launches.interval
        assert low <= truth <= high
        assert launches.share < 1.0
        states = [one for one in watched.records if isinstance(one, GovernorState)]
        settled = [one.measured for one in states[2:] if one.measured is not None]
        assert settled
        assert sum(settled) / len(settled) <= 1.5 * GOVERNED.budget
        activity = [one for one in watched.records if isinstance(one, KernelActivity)]
        assert any(one.sampling_rate_millionths < 1_000_000 for one in activity)


@pytest.mark.parametrize("launched", [8_000_000, 60_000_000])
def test_burst_that_was_cut_off_lies_within_its_bounds(
    stubs: Stubs, tmp_path: Path, launched: int
) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    with watching(governor=GOVERNED) as watched:
        with watched.waiting(program, "families", launched) as child:
            start(child)
            drained(watched, 3.0)
            assert child.stdout is not None
            assert child.stdout.readline() == "done\n"
            drained_whole(watched)
        launches = counted(watched, child.pid)
        low, high = launches.interval
        assert 0 < low <= launched <= high
        assert launches.error == inf  # there are bounds, and no interval


def test_burst_that_nobody_watched_is_bounded_and_not_nothing(stubs: Stubs, tmp_path: Path) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    with watching(governor=GOVERNED) as watched:
        keeper = watched.source.running.keeper
        with (
            watched.waiting(program, "steady", 100_000, 10_000) as busy,
            watched.waiting(program, "families", 8_000_000) as child,
        ):
            start(busy)
            until(lambda: bool(watched.drain()) and ProbeGroup.LAUNCH not in keeper.period.steady)
            begin(child)
            drained(watched, 2.5)
        low, high = counted(watched, child.pid).interval
        assert low <= 8_000_000 <= high


def test_source_stops_without_a_trace_and_starts_again(stubs: Stubs, tmp_path: Path) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    before = set(threading.enumerate())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        with watching(symbols=tmp_path / "names.sqlite") as watched:
            with watched.waiting(program, "families", 3, 2, 1) as child:
                begin(child)
                watched.drain()
            assert watched.launches() == {"gemm": 3, "softmax": 2, "attention": 1}
            assert watched.source.running.programs.attached
        assert set(threading.enumerate()) == before
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 1
    watched.source.stop()


@pytest.mark.release
@pytest.mark.parametrize("thread", ["switching", "discovery"])
def test_source_without_one_of_its_threads_detaches_and_fails(
    stubs: Stubs, tmp_path: Path, thread: str
) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    with watching() as watched, watched.waiting(program, "families", 3, 2, 1):
        running = watched.source.running
        getattr(running, thread).stop()
        with pytest.raises(SourceUnavailable, match="all is detached"):
            watched.drain()
        assert not running.programs.attached
