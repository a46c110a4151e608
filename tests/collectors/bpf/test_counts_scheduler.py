"""Scheduler metrics under known loads against /proc/PID and cpu.stat."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest

from collectors.ebpf.ebpf_source import EbpfSource
from collectors.ebpf.ebpf_tables import OTHER
from collectors.ebpf.host_ticks import Limits, PerCpuTicks
from collectors.records.activity import HostTicks
from tests.bpf_kit import Load, cgroup, drain

pytestmark = [pytest.mark.root, pytest.mark.kernel]

SLACK_NS = 5_000_000
"""What a load does between its last mark and the drain: a few wake-ups."""


def ticks_of_a_spin(source: EbpfSource, seconds: float, folder: Path) -> HostTicks:
    drain(source)
    load = Load("spin", seconds, cwd=folder)
    load.go()
    load.wait()
    load.end()
    ticks = drain(source).ticks
    assert ticks is not None
    return ticks


def assert_on_the_grid(ticks: HostTicks) -> None:
    """The grid has as many places as there were ticks and missed ones."""
    places = (ticks.boottime_ns[-1] - ticks.boottime_ns[0]) / 10e6
    assert abs(places - (len(ticks.boottime_ns) - 1 + ticks.missed)) <= 1


@pytest.mark.release
def test_snapshots_come_every_ten_milliseconds(source: EbpfSource, tmp_path: Path) -> None:
    ticks = ticks_of_a_spin(source, 1.0, tmp_path)
    assert ticks.lost == 0
    assert_on_the_grid(ticks)
    assert (np.diff(ticks.boottime_ns) > 0).all()
    cpu_ns = ticks.totals[:, ticks.metrics.index("cpu_ns")].astype(np.int64)
    assert cpu_ns[-1] - cpu_ns[0] >= 0.9e9, "a task that never leaves its CPU is seen while it runs"


def test_ticks_of_older_kernels_keep_the_same_grid(tmp_path: Path) -> None:
    source = EbpfSource("libbpf", Limits(absolute_timer=False))
    source.start()
    try:
        ticks = ticks_of_a_spin(source, 0.3, tmp_path)
    finally:
        source.stop()
    assert len(ticks.boottime_ns) >= 10
    assert_on_the_grid(ticks)


@pytest.mark.release
def test_perf_events_tick_where_there_is_no_timer(tmp_path: Path) -> None:
    source = EbpfSource("libbpf", Limits(timer=False))
    source.start()
    try:
        with cgroup("cpu") as group:
            loads = [Load("spin", 0.25, (group,), cwd=tmp_path) for _ in range(2)]
            before = sum(load.schedstat()[0] for load in loads)
            drain(source)
            for load in loads:
                load.go()
            time.sleep(0.3)
            halfway = drain(source)
            for load in loads:
                load.wait()
            rest = drain(source)
            ran = sum(load.schedstat()[0] for load in loads) - before
            for load in loads:
                load.end()
    finally:
        source.stop()
    assert halfway.ticks is not None
    assert_on_the_grid(halfway.ticks)
    assert halfway.ticks.lost == 0
    assert len(halfway.ticks.boottime_ns) >= 10
    cpu_ns = halfway.ticks.totals[:, halfway.ticks.metrics.index("cpu_ns")].astype(np.int64)
    assert cpu_ns[-1] - cpu_ns[0] >= 0.08e9, "a task that never leaves its CPU is seen"
    first, second = (seen.row("cgroup", group.name)["cpu_ns"] for seen in (halfway, rest))
    assert first >= 0.1e9
    assert abs(first + second - ran) <= 0.02 * ran + 3 * SLACK_NS
    cost = halfway.tables["bpf_cost"]
    assert cost.column("timed_ns")["on_tick"] > 0
    assert cost.column("hits")["on_tick"] >= len(halfway.ticks.boottime_ns)


def test_perf_ticks_that_did_not_come_are_counted_as_missed(tmp_path: Path) -> None:
    source = EbpfSource("libbpf", Limits(timer=False))
    source.start()
    try:
        ticks = ticks_of_a_spin(source, 0.3, tmp_path)
        # The next is seen after the grid went on without a tick: the readers are set back twelve.
        drain(source)
        running = source._running().programs.ticks
        assert isinstance(running, PerCpuTicks)
        assert running._place is not None
        running._place -= 12
        load = Load("spin", 0.1, cwd=tmp_path)
        load.go()
        load.wait()
        load.end()
        late = drain(source).ticks
    finally:
        source.stop()
    assert late is not None
    assert ticks.missed < 30
    assert late.missed >= 10


@pytest.mark.live
def test_run_delay_and_cpu_time_equal_schedstat(source: EbpfSource, tmp_path: Path) -> None:
    with cgroup("cpu") as group:
        loads = [Load("spin", 0.4, (group,), cwd=tmp_path) for _ in range(2)]
        before = [(*load.schedstat(), load.involuntary()) for load in loads]
        drain(source)
        for load in loads:
            load.go()
        for load in loads:
            load.wait()
        seen = drain(source).row("cgroup", group.name)
        after = [(*load.schedstat(), load.involuntary()) for load in loads]
        for load in loads:
            load.end()
    ran, waited, involuntary = np.sum(after, axis=0) - np.sum(before, axis=0)
    assert waited > 0.3e9, "two loads on one CPU wait for each other"
    assert abs(seen["cpu_ns"] - ran) <= 0.01 * ran + SLACK_NS
    assert abs(seen["run_delay_ns"] - waited) <= 0.01 * waited + SLACK_NS
    # A load that said `done` may be switched away once or twice more before it sleeps.
    assert abs(seen["switches_involuntary"] - involuntary) <= 0.01 * involuntary + 4


def test_throttling_equals_cpu_stat_and_is_told_from_contention(
    source: EbpfSource, tmp_path: Path
) -> None:
    with cgroup("cpu") as group:
        group.set("cpu.cfs_period_us", 100_000)
        group.set("cpu.cfs_quota_us", 20_000)
        loads = [Load("spin", 0.1, (group,), cwd=tmp_path) for _ in range(2)]
        before = group.stat("cpu.stat")
        drain(source)
        for load in loads:
            load.go()
        for load in loads:
            load.wait()
        seen = drain(source).row("cgroup", group.name)
        after = group.stat("cpu.stat")
        for load in loads:
            load.end()
    throttled_ns = after["throttled_time"] - before["throttled_time"]
    assert after["nr_throttled"] - before["nr_throttled"] >= 4
    assert abs(seen["throttled_periods"] - (after["nr_throttled"] - before["nr_throttled"])) <= 1
    assert abs(seen["throttled_ns"] - throttled_ns) <= 0.05 * throttled_ns + 100_000_000
    # Both loads wait through most of each throttled span: between one and two times its length.
    assert 0.9 * throttled_ns <= seen["run_delay_throttled_ns"] <= 2.1 * throttled_ns
    assert seen["run_delay_throttled_ns"] <= seen["run_delay_ns"]


def test_cgroups_beyond_the_bound_are_counted_in_other(tmp_path: Path) -> None:
    source = EbpfSource("libbpf", Limits(cgroups=1))
    source.start()
    try:
        with cgroup("cpu") as group:
            load = Load("spin", 0.1, (group,), cwd=tmp_path)
            drain(source)
            load.go()
            load.wait()
            seen = drain(source)
            load.end()
    finally:
        source.stop()
    assert seen.total("cgroup_drops") > 0
    assert seen.row("cgroup", group.name).get("cpu_ns", 0) == 0
    assert seen.row("cgroup", OTHER)["cpu_ns"] >= 90_000_000


@pytest.mark.parametrize("timer", [True, False])
def test_stop_leaves_nothing_in_the_kernel(timer: bool) -> None:
    before = _bpf_descriptors()
    source = EbpfSource("libbpf", Limits(timer=timer))
    source.start()
    assert len(_bpf_descriptors()) > len(before)
    source.stop()
    source.stop()
    assert _bpf_descriptors() == before


def _bpf_descriptors() -> list[str]:
    links = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sorted(link for link in links if "anon_inode" in link and re.search("bpf|perf", link))
