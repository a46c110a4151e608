"""Drained records become a frame's host: its signals, its fine bins, its links."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from collectors.devices.device_port import Field
from collectors.ebpf import ebpf_tables as layout
from collectors.interface import UnavailableSource
from collectors.records.activity import Observation
from diagnosis.frames.framer import LinkRate, parse_shapers
from diagnosis.frames.signals import FINE, SIGNALS, Scope, lacking, of_scope
from tests.frames_kit import (
    MS,
    T0,
    S,
    cgroup,
    cpu,
    frame_of,
    framer,
    gpu_calls,
    reading,
    table,
    ticks,
)


def test_frame_run_delay_is_net_of_what_a_quota_imposed() -> None:
    made = framer()
    made.take([cpu({"run_delay_ns": 700 * MS, "run_delay_throttled_ns": 500 * MS})])
    job = {"cpu_ns": 1, "run_delay_ns": 600 * MS, "run_delay_throttled_ns": 500 * MS}
    made.take([cgroup({"/job": job})])
    frame = frame_of(made)
    assert frame.host["run_delay_ms_per_s"] == pytest.approx(200)
    assert frame.host["throttled_delay_ms_per_s"] == pytest.approx(500)
    assert frame.cgroups["/job"]["run_delay_ms_per_s"] == pytest.approx(100)


def test_frame_signals_are_in_the_table_and_of_their_scope() -> None:
    made = framer({7: "/job"}, watch=["/job"], faults=True)
    everything = dict.fromkeys(layout.TOTALS, 5)
    made.take([
        cpu(everything, everything),
        cgroup({"/job": dict.fromkeys(layout.CGROUP_COLUMNS, 3), "/x": {"cpu_ns": 1}}),
        table("block_cgroup", layout.BLOCK_CGROUP_COLUMNS, {"/job": {"ios": 1}}),
        table("device", layout.DEVICE_COLUMNS, {"vda": dict.fromkeys(layout.DEVICE_COLUMNS, 2)}),
        table("peer", layout.PEER_COLUMNS, {"10.0.0.1": {"retransmits": 2}}),
        table("pressure", ("some_ns", "full_ns"), {r: {} for r in ("cpu", "memory", "io", "irq")}),
        Observation("host_cpu", "steal", 20_000, T0),
        gpu_calls(),
    ])  # fmt: skip
    made.look([reading(dict.fromkeys(Field, 3), T0 + S, users={7: 40, 8: 10})])
    frame = frame_of(made)
    job = frame.subjects["/job"]
    for scope, signals in (
        (Scope.HOST, frame.host), (Scope.CGROUP, frame.cgroups["/job"]),
        (Scope.SUBJECT, job.signals), (Scope.GPU, frame.gpus[0]),
    ):  # fmt: skip
        assert signals.keys() <= set(of_scope(SIGNALS, scope)), scope
    missing = {name for name in of_scope(SIGNALS, Scope.HOST) if name not in frame.host}
    assert missing == {
        "iowait_percent", "memory_used_percent", "memory_cached_percent", "link_bytes_per_s",
    }  # fmt: skip


def test_frame_busiest_cpu_is_found_by_each_signal() -> None:
    made = framer()
    made.take(
        [cpu({"irq_count": 9, "irq_ns": MS}, {"irq_ns": 4 * MS, "softirq_ns_net_rx": 7 * MS})]
    )
    host = frame_of(made).host
    assert host["busiest_cpu_irqs_per_s"] == 9
    assert host["busiest_cpu_irq_ms_per_s"] == 4
    assert host["busiest_cpu_softirq_ms_per_s"] == 7
    assert host["irq_ms_per_s"] == 5


def test_frame_worst_disk_is_the_one_whose_requests_took_longest() -> None:
    made = framer()
    rows = {
        "vda": {"reads": 900, "total_ns": 90 * MS, "latency_log2_us_6": 900},
        "sdb": {"writes": 100, "total_ns": 800 * MS, "latency_log2_us_12": 98,
                "latency_log2_us_16": 2},
    }  # fmt: skip
    made.take([cpu({}), table("device", layout.DEVICE_COLUMNS, rows)])
    host = frame_of(made).host
    assert host["worst_disk_ms_per_s"] == pytest.approx(800)
    assert host["worst_disk_latency_ms"] == pytest.approx(8)
    assert host["worst_disk_latency_p99_ms"] == pytest.approx(131.072)


def test_frame_without_requests_has_no_latency_and_without_ebpf_no_disk() -> None:
    made = framer()
    made.take([cpu({})])
    host = frame_of(made).host
    assert host["worst_disk_ms_per_s"] == 0
    assert "worst_disk_latency_ms" not in host
    assert frame_of(made, 2).host == {}


def test_frame_means_are_absent_where_nothing_was_counted() -> None:
    made = framer()
    made.take([cpu({"net_sends": 4, "net_send_queue_bytes": 400, "net_srtt_us": 90})])
    host = frame_of(made).host
    assert host["send_queue_bytes"] == 100
    assert "srtt_us" not in host


def test_frame_of_several_drains_adds_them_up() -> None:
    made = framer()
    made.take([cgroup({"/a": {"cpu_ns": 100 * MS}}), cpu({"cpu_ns": 100 * MS})])
    assert made.frame(T0 + S // 4) is None
    made.take([cgroup({"/b": {"cpu_ns": 10 * MS}, "/a": {"cpu_ns": 300 * MS}}), cpu({})])
    frame = frame_of(made)
    # Each drain says that it covers a second: together two.
    assert frame.cgroups["/a"]["cpu_ms_per_s"] == pytest.approx(200)
    assert frame.cgroups["/b"]["cpu_ms_per_s"] == pytest.approx(5)
    assert frame.host["cpu_ms_per_s"] == pytest.approx(50)


def test_fine_bins_are_tenths_of_the_frame_and_join_the_frame_before() -> None:
    made = framer()
    every = S // 100
    times = [T0 + every * n for n in range(-1, 101)]
    deltas = [0, *(10 if 300 <= n * 10 < 400 else 1 for n in range(101))]
    made.take([ticks(times, switches=np.cumsum(deltas).tolist())])
    row = frame_of(made).fine[FINE.index("switches_per_s")]
    # The snapshot at a border belongs to the tenth that ends there.
    assert row[3] == pytest.approx(910, rel=0.02)
    assert row[2] == pytest.approx(190, rel=0.1)
    assert np.delete(row, [2, 3]) == pytest.approx(np.full(8, 100.0))
    later = [T0 + S + S // 10 * n + 5 for n in range(1, 3)]
    made.take([ticks(later, switches=[1_000_000, 1_000_000])])
    row = frame_of(made, 2).fine[FINE.index("switches_per_s")]
    assert np.isnan(row[0])
    assert row[1] > 0
    assert row[2] == 0
    assert np.isnan(row[3:]).all()


def test_fine_is_absent_for_what_the_snapshots_lack() -> None:
    made = framer()
    short = ticks([T0 - 1, T0 + S // 2], switches=[0, 50])
    made.take([type(short)(layout.TOTALS[:2], short.boottime_ns, short.totals[:, :2], 0, 0)])
    fine = frame_of(made).fine
    assert fine[FINE.index("switches_per_s"), 4] == pytest.approx(100, rel=0.01)
    assert np.isnan(fine[FINE.index("cpu_ms_per_s")]).all()


def test_faults_of_hardware_are_counted_by_kind() -> None:
    made = framer(faults=True)
    made.take([Observation("hardware_faults", "ssd", 1, T0)] * 2)
    made.take([Observation("hardware_faults", "server_chassis", 1, T0)])
    host = frame_of(made).host
    assert (host["faults_disk_per_s"], host["faults_other_per_s"]) == (2, 1)
    assert host["faults_memory_per_s"] == 0
    assert frame_of(made, 2).host["faults_disk_per_s"] == 0


def test_frame_leaves_out_what_the_kernel_has_no_hook_for(tmp_path: Path) -> None:
    absent = UnavailableSource("on_page_fault", "this kernel has no tracepoint page_fault_user")
    (tmp_path / "online").write_text("0\n")
    lost = lacking([absent], tmp_path / "online")
    assert lost == {"page_faults_per_s", "numa_migrations_per_s"}
    (tmp_path / "online").write_text("0-1\n")
    assert lacking([], tmp_path / "online") == frozenset()
    made = framer(watch=["/job"])
    made.lack(lost)
    made.take([cpu({}), cgroup({"/job": {"cpu_ns": 1}}), ticks([T0, T0 + S], switches=[0, 5])])
    frame = frame_of(made)
    for signals in (frame.host, frame.cgroups["/job"], frame.subjects["/job"].signals):
        assert "cpu_ms_per_s" in signals
        assert "page_faults_per_s" not in signals
    assert np.isnan(frame.fine[FINE.index("page_faults_per_s")]).all()
    assert frame.fine[FINE.index("switches_per_s"), 9] == 5


def _attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def _qdisc(index: int, kind: bytes, options: bytes) -> bytes:
    body = struct.pack("=BxxxiIII", 0, index, 0, 0, 0)
    body += _attribute(1, kind + b"\0") + _attribute(2, options)
    return struct.pack("=IHHII", 16 + len(body), 36, 2, 1, 0) + body


def test_shapers_are_read_from_the_kernels_answer() -> None:
    slow = _attribute(1, struct.pack("=8sI", b"", 25_000_000) + bytes(24))
    fast = slow + _attribute(4, struct.pack("=Q", 6_000_000_000))
    answer = _qdisc(2, b"tbf", slow) + _qdisc(3, b"fq", slow) + _qdisc(4, b"tbf", fast)
    assert dict(parse_shapers(answer)) == {2: 25_000_000, 4: 6_000_000_000}
    for cut in range(len(answer)):
        assert set(dict(parse_shapers(answer[:cut]))) <= {2, 4}


def test_link_rate_is_that_of_the_slowest_link_that_is_up(tmp_path: Path) -> None:
    for name, index, state, speed in (
        ("eth0", 2, "up", "10000"), ("eth1", 3, "down", "10"), ("veth", 4, "up", "10000"),
        ("lo", 1, "up", "1"), ("odd", 5, "up", "-1"),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        for file, text in (("operstate", state), ("speed", speed), ("ifindex", str(index))):
            (tmp_path / name / file).write_text(f"{text}\n")
    shaped = {4: 25_000_000, 3: 7}
    rate = LinkRate(tmp_path, lambda: shaped)
    assert rate(T0) == {"link_bytes_per_s": 25_000_000}
    shaped.clear()
    assert rate(T0 + S) == {"link_bytes_per_s": 25_000_000}
    assert rate(T0 + 11 * S) == {"link_bytes_per_s": 1_250_000_000}
    assert LinkRate(tmp_path / "none", dict)(T0) == {}
