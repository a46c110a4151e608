"""BCC beside libbpf: the same metrics under the same load, and what only one of them gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collectors.ebpf.ebpf_loaders import LIBBPF_ONLY, PARTS, source_text
from collectors.ebpf.ebpf_source import EbpfSource
from tests.bpf_kit import Cgroup, Load, cgroup, drain
from tests.bpf_loads import LOSSY

pytestmark = [pytest.mark.root, pytest.mark.kernel]

SHARED = (
    "switches",
    "switches_involuntary",
    "run_delay_ns",
    "cpu_ns",
    "irq_count",
    "net_sends",
    "net_send_bytes",
    "net_receives",
    "net_receive_bytes",
    "page_faults",
    "reclaim_cgroup_count",
    "softirq_count_net_rx",
    "softirq_ns_net_rx",
)


def mixed_load(folder: Path, limited: Cgroup) -> list[Load]:
    limited.set("memory.limit_in_bytes", 16 << 20)
    return [
        Load("spin", 0.5, cwd=folder),
        Load("spin", 0.5, cwd=folder),
        Load("tcp", 8 << 20, cwd=folder),
        Load("touch", 5_000, cwd=folder),
        Load("write", 2, cwd=folder),
        Load("cache", 48, (limited,), cwd=folder),
    ]


@pytest.mark.live
def test_both_loaders_count_the_same(
    source: EbpfSource, bcc_source: EbpfSource, tmp_path: Path
) -> None:
    with cgroup("memory") as limited:
        loads = mixed_load(tmp_path, limited)
        drain(source)
        drain(bcc_source)
        for load in loads:
            load.go()
        for load in loads:
            load.wait()
        first, second = drain(source), drain(bcc_source)
        for load in loads:
            load.end()
    for metric in SHARED:
        ours, theirs = first.total(metric), second.total(metric)
        assert ours > 0, metric
        # Times are taken at other places of the switch, and the drains lie a moment apart.
        tolerance = 0.25 if "_ns" in metric else 0.03
        slack = 20_000_000 if "_ns" in metric else 100
        assert abs(ours - theirs) <= tolerance * ours + slack, (metric, ours, theirs)


def test_bcc_ticks_are_summed_over_cpus(bcc_source: EbpfSource, tmp_path: Path) -> None:
    drain(bcc_source)
    load = Load("spin", 0.5, cwd=tmp_path)
    load.go()
    load.wait()
    load.end()
    ticks = drain(bcc_source).ticks
    assert ticks is not None
    # An idle CPU does not tick; the one that spins does.
    assert len(ticks.boottime_ns) >= 40
    assert (np.diff(ticks.boottime_ns) > 0).all()
    switches = ticks.totals[:, ticks.metrics.index("switches")].astype(np.int64)
    assert (np.diff(switches) >= 0).all()


def test_bcc_says_what_only_libbpf_gives(bcc_source: EbpfSource) -> None:
    absent = {one.source: one.reason for one in bcc_source.absent}
    assert set(LIBBPF_ONLY) <= absent.keys()
    if "kernel structs" in absent:
        assert "headers do not match" in absent["kernel structs"]


def test_bcc_programs_read_no_kernel_struct() -> None:
    text = source_text([*PARTS, "ticks"])
    for forbidden in ("bpf_get_current_task", "probe_read", "#include <linux/"):
        assert forbidden not in text


def test_bcc_retransmits_count_packets_by_peer(bcc_source: EbpfSource, tmp_path: Path) -> None:
    load = Load("lose", 60_000, (), "unshare", "--net", cwd=tmp_path)
    before = load.retransmits()
    drain(bcc_source)
    load.go()
    load.wait()
    peer = drain(bcc_source).row("peer", LOSSY)
    again = load.retransmits() - before
    load.end()
    # Some of its packets carry several segments.
    assert 2 <= peer["retransmits"] < again
