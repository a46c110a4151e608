"""The programs' own account of what they cost, against the kernel's BPF statistics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.ebpf.ebpf_source import EbpfSource
from collectors.ebpf.ebpf_tables import PROGRAMS
from collectors.ebpf.host_ticks import Limits
from tests.bpf_kit import Load, drain

pytestmark = [pytest.mark.root, pytest.mark.kernel]

STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")


@pytest.fixture
def statistics() -> Iterator[None]:
    before = STATISTICS.read_text(encoding="utf-8")
    STATISTICS.write_text("1", encoding="utf-8")
    yield
    STATISTICS.write_text(before, encoding="utf-8")


def kernel_counts() -> dict[int, tuple[int, int]]:
    """(run_cnt, run_time_ns) of each program that this process holds, by program id."""
    found: dict[int, tuple[int, int]] = {}
    for info in Path("/proc/self/fdinfo").iterdir():
        try:
            fields = dict(line.split(":\t", 1) for line in info.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if "prog_id" in fields and "run_cnt" in fields:
            found[int(fields["prog_id"])] = (int(fields["run_cnt"]), int(fields["run_time_ns"]))
    return found


def test_kernel_statistics_are_not_shown_while_they_are_off(source: EbpfSource) -> None:
    if STATISTICS.read_text(encoding="utf-8").strip() != "0":
        pytest.skip("this machine's BPF statistics are on")
    drain(source)
    assert "bpf_statistics" not in drain(source).tables


def test_own_account_agrees_with_bpf_statistics(statistics: None, tmp_path: Path) -> None:
    others = kernel_counts()
    source = EbpfSource("libbpf", Limits(timed_hits_log2=2))
    source.start()
    try:
        readings = [kernel_counts()]
        drain(source)
        readings.append(kernel_counts())
        load = Load("tcp", 32 << 20, cwd=tmp_path)
        load.go()
        load.wait()
        readings.append(kernel_counts())
        seen = drain(source)
        readings.append(kernel_counts())
        load.end()
        again = drain(source)
    finally:
        source.stop()
    assert seen.tables["bpf_statistics"].column("run_ns")["on_sched_switch"] > 0
    assert again.tables["bpf_statistics"].span_ns > 0
    own = seen.tables["bpf_cost"]
    hits, timed, timed_ns = (own.column(c) for c in own.columns)
    total = sum(hits[name] for name in PROGRAMS)
    runs = [sum(r[p][0] for p in r if p not in others) for r in readings]
    assert total >= 1_000
    assert 0.98 * (runs[2] - runs[1]) - 50 <= total <= 1.01 * (runs[3] - runs[0]) + 50
    # The accounts are read one after the other: what ran meanwhile is in one of them alone.
    while_read = (runs[3] - runs[0]) - (runs[2] - runs[1])
    theirs = seen.tables["bpf_statistics"].column("runs")
    assert theirs.keys() == PROGRAMS.keys()
    for name in PROGRAMS:
        assert abs(theirs[name] - hits[name]) <= 0.01 * hits[name] + while_read, name
    for name in PROGRAMS:
        assert abs(timed[name] - hits[name] / 4) <= 0.02 * hits[name] + 8
    # The kernel's figure has its own two clock reads and each program's entry on top.
    ours_ns = sum(timed_ns[n] / timed[n] * hits[n] for n in PROGRAMS if timed[n])
    times = [sum(r[p][1] for p in r if p not in others) for r in readings]
    theirs_ns = times[3] - times[0]
    assert 0.4 * theirs_ns <= ours_ns <= 1.5 * theirs_ns
    assert timed["on_tick"] == hits["on_tick"] > 0
    assert timed_ns["on_tick"] > 0
