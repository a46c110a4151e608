"""Drained records become frames: host, cgroups, GPUs and subjects of one second."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from edge_agent.activity import Observation
from edge_agent.devices.port import DeviceReading, Field, Gap, GapKind, all_gaps
from edge_agent.frames.cgroup_pressure import CgroupPressure
from edge_agent.frames.frame import Frame, StepSource
from edge_agent.frames.framer import Framer
from edge_agent.frames.gpu_signals import GpuSignals
from edge_agent.frames.lacking import lacking
from edge_agent.frames.links import LinkRate, parse_shapers
from edge_agent.frames.places import cpu_cgroup
from edge_agent.frames.signals import FINE, SIGNALS, Scope, of_scope
from edge_agent.probes.counts import Direction, Group, ProcessKey
from edge_agent.probes.records import (
    CopyCalls,
    Counted,
    GpuCalls,
    Identity,
    ProcessCalls,
    WaitCalls,
)
from edge_agent.sources import ebpf_layout as layout
from edge_agent.sources.port import Absence
from tests.frames_kit import (
    T0,
    S,
    cgroup,
    cpu,
    framer,
    marks,
    reading,
    sends,
    table,
    ticks,
)

MS = 1_000_000


def _frame(made: Framer, second: int = 1) -> Frame:
    found = made.frame(T0 + second * S)
    assert found is not None
    return found


def test_frame_run_delay_is_net_of_what_a_quota_imposed() -> None:
    made = framer()
    made.take([cpu({"run_delay_ns": 700 * MS, "run_delay_throttled_ns": 500 * MS})])
    job = {"cpu_ns": 1, "run_delay_ns": 600 * MS, "run_delay_throttled_ns": 500 * MS}
    made.take([cgroup({"/job": job})])
    frame = _frame(made)
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
        _calls(),
    ])  # fmt: skip
    made.look([reading(dict.fromkeys(Field, 3), T0 + S, users={7: 40, 8: 10})])
    frame = _frame(made)
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
    host = _frame(made).host
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
    host = _frame(made).host
    assert host["worst_disk_ms_per_s"] == pytest.approx(800)
    assert host["worst_disk_latency_ms"] == pytest.approx(8)
    assert host["worst_disk_latency_p99_ms"] == pytest.approx(131.072)


def test_frame_without_requests_has_no_latency_and_without_ebpf_no_disk() -> None:
    made = framer()
    made.take([cpu({})])
    host = _frame(made).host
    assert host["worst_disk_ms_per_s"] == 0
    assert "worst_disk_latency_ms" not in host
    assert _frame(made, 2).host == {}


def test_frame_means_are_absent_where_nothing_was_counted() -> None:
    made = framer()
    made.take([cpu({"net_sends": 4, "net_send_queue_bytes": 400, "net_srtt_us": 90})])
    host = _frame(made).host
    assert host["send_queue_bytes"] == 100
    assert "srtt_us" not in host


def test_frame_of_several_drains_adds_them_up() -> None:
    made = framer()
    made.take([cgroup({"/a": {"cpu_ns": 100 * MS}}), cpu({"cpu_ns": 100 * MS})])
    assert made.frame(T0 + S // 4) is None
    made.take([cgroup({"/b": {"cpu_ns": 10 * MS}, "/a": {"cpu_ns": 300 * MS}}), cpu({})])
    frame = _frame(made)
    # Each drain says that it covers a second: together two.
    assert frame.cgroups["/a"]["cpu_ms_per_s"] == pytest.approx(200)
    assert frame.cgroups["/b"]["cpu_ms_per_s"] == pytest.approx(5)
    assert frame.host["cpu_ms_per_s"] == pytest.approx(50)


def test_fine_bins_are_tenths_of_the_frame_and_join_the_frame_before() -> None:
    made = framer()
    every = S // 100
    times = [T0 + every * n for n in range(-1, 101)]
    growth = [0, *(10 if 300 <= n * 10 < 400 else 1 for n in range(101))]
    made.take([ticks(times, switches=np.cumsum(growth).tolist())])
    row = _frame(made).fine[FINE.index("switches_per_s")]
    # The snapshot at a border belongs to the tenth that ends there.
    assert row[3] == pytest.approx(910, rel=0.02)
    assert row[2] == pytest.approx(190, rel=0.1)
    assert np.delete(row, [2, 3]) == pytest.approx(np.full(8, 100.0))
    later = [T0 + S + S // 10 * n + 5 for n in range(1, 3)]
    made.take([ticks(later, switches=[1_000_000, 1_000_000])])
    row = _frame(made, 2).fine[FINE.index("switches_per_s")]
    assert np.isnan(row[0])
    assert row[1] > 0
    assert row[2] == 0
    assert np.isnan(row[3:]).all()


def test_fine_is_absent_for_what_the_snapshots_lack() -> None:
    made = framer()
    short = ticks([T0 - 1, T0 + S // 2], switches=[0, 50])
    made.take([type(short)(layout.TOTALS[:2], short.boottime_ns, short.totals[:, :2], 0, 0)])
    fine = _frame(made).fine
    assert fine[FINE.index("switches_per_s"), 4] == pytest.approx(100, rel=0.01)
    assert np.isnan(fine[FINE.index("cpu_ms_per_s")]).all()


def test_cgroups_name_the_busiest_by_each_rank_and_the_subjects_own() -> None:
    made = framer(watch=["/job*"])
    rows = {f"/idle{n}": {"cpu_ns": n * MS} for n in range(30)}
    rows |= {"/net": {"send_bytes": 9_000}, "/job1": {"cpu_ns": 1}, "OTHER": {"cpu_ns": S}}
    made.take([
        cpu({}), cgroup(rows),
        table("block_cgroup", layout.BLOCK_CGROUP_COLUMNS, {"/disk": {"read_bytes": 9}}),
    ])  # fmt: skip
    frame = _frame(made)
    assert list(frame.subjects) == ["/job1"]
    assert frame.cgroups.keys() == {
        "/job1", "/idle29", "/idle28", "/idle27", "/idle26", "/disk", "/net",
    }  # fmt: skip
    assert frame.cgroups["/disk"]["block_read_bytes_per_s"] == 9
    assert frame.cgroups["/disk"]["cpu_ms_per_s"] == 0


def test_cgroup_quota_says_in_which_share_of_periods_it_ran_out() -> None:
    made = framer(watch=["/q"])
    rows = {"/q": {"quota_periods": 10, "throttled_periods": 4}, "/free": {"cpu_ns": 5}}
    made.take([cpu({}), cgroup(rows)])
    frame = _frame(made)
    assert frame.subjects["/q"].signals["throttled_periods_percent"] == 40
    assert "throttled_periods_percent" not in frame.cgroups["/free"]


def test_waits_of_a_cgroup_that_is_not_watched_are_absent() -> None:
    made = framer(watch=["/a", "/b"])
    made.take([cpu({}), cgroup({"/a": {"switches": 9, "sleep_ns": MS}, "/b": {"switches": 9}})])
    subjects = _frame(made).subjects
    assert subjects["/a"].signals["block_wait_ms_per_s"] == 0
    assert "block_wait_ms_per_s" not in subjects["/b"].signals


def test_subject_that_is_named_stays_while_it_is_silent_for_a_minute() -> None:
    made = framer(watch=["/job"])
    made.take([cpu({}), cgroup({"/job": {"cpu_ns": MS}})])
    assert list(_frame(made, 1).subjects) == ["/job"]
    made.take([cpu({}), cgroup({"/x": {"cpu_ns": MS}})])
    silent = _frame(made, 60).subjects["/job"]
    assert silent.signals["cpu_ms_per_s"] == 0
    assert not _frame(made, 63).subjects


def test_subject_has_the_steps_of_its_process_and_the_age_of_the_open_one() -> None:
    made = framer()
    made.take([marks(7, [T0 + 20 * MS, T0 + 40 * MS], open_ns=T0 + 40 * MS)])
    job = _frame(made).subjects["/job"]
    assert (job.cgroup, job.program) == ("/job", "train")
    assert job.steps is not None
    assert job.steps.ended_ns.tolist() == [T0 + 20 * MS, T0 + 40 * MS]
    assert job.steps.running_ns == S - 40 * MS
    made.take([marks(7, [], open_ns=T0 + 40 * MS)])
    hung = _frame(made, 30).subjects["/job"].steps
    assert hung is not None
    assert len(hung.ended_ns) == 0
    assert hung.running_ns == 30 * S - 40 * MS


def test_processes_of_one_cgroup_that_make_steps_are_subjects_each() -> None:
    made = framer()
    made.take([marks(7, [T0 + MS]), marks(8, [T0 + 2 * MS]), marks(9, [T0 + 3 * MS], "/b")])
    assert list(_frame(made).subjects) == ["/job#7", "/job#8", "/b"]


def test_subject_that_was_started_again_keeps_its_key() -> None:
    gone: set[int] = set()
    made = Framer(alive=lambda pid: pid not in gone)
    made.frame(T0)
    made.take([marks(7, [T0 + MS])])
    assert list(_frame(made, 1).subjects) == ["/job"]
    gone.add(7)
    made.take([marks(8, [T0 + S + MS])])
    assert list(_frame(made, 2).subjects) == ["/job"]


def test_subject_takes_the_more_exact_of_two_marks() -> None:
    made = framer()
    calls = StepSource.SYNCHRONISATIONS
    made.take([marks(7, [T0 + MS], source=calls, probe="sync"), marks(7, [T0 + 2 * MS])])
    steps = _frame(made).subjects["/job"].steps
    assert steps is not None
    assert (steps.source, steps.ended_ns.tolist()) == (StepSource.UPROBE, [T0 + 2 * MS])
    made.take([marks(7, [T0 + S + MS], source=calls, probe="sync"), marks(7, [T0 + S + 5 * MS])])
    steps = _frame(made, 2).subjects["/job"].steps
    assert steps is not None
    assert steps.ended_ns.tolist() == [T0 + S + 5 * MS]


def test_subject_of_a_rhythm_has_steps_of_its_own_after_some_seconds() -> None:
    made = framer()
    ends = T0 + np.cumsum(np.full(3_000, 10 * MS))
    found = []
    for second in range(1, 20):
        here = ends[(ends > T0 + (second - 1) * S) & (ends <= T0 + second * S)]
        made.take([sends(7, here.tolist(), "/loop"), sends(8, here.tolist(), "/")])
        found.append(_frame(made, second).subjects)
    assert not found[0]
    rhythm = found[-1]["/loop"].rhythm
    assert rhythm is not None
    assert (rhythm.source, len(rhythm.ended_ns)) == (StepSource.RHYTHM, 100)
    assert (rhythm.duration_ns == 10 * MS).all()
    assert found[-1]["/loop"].steps is None
    assert list(found[-1]) == ["/loop"]
    assert not _frame(made, 19 + 61).subjects


def test_subject_with_steps_has_the_rhythm_of_the_process_that_makes_them() -> None:
    made = framer()
    for second in range(1, 20):
        begun = T0 + (second - 1) * S
        for pid, every in ((6, 20 * MS), (7, 10 * MS)):
            made.take([sends(pid, range(begun + every, begun + S + 1, every), "/job")])
        made.take([marks(7, [begun + S])])
        job = _frame(made, second).subjects["/job"]
    assert job.rhythm is not None
    assert (job.rhythm.duration_ns == 10 * MS).all()


def _calls(pid: int = 7, span_ns: int = S, share: float = 1.0) -> GpuCalls:
    copies = (CopyCalls(Direction.HOST_TO_DEVICE, Counted.exactly(4), 4_000, ()),)
    one = ProcessCalls(
        ProcessKey(pid, 0), Identity("python3"), Counted(50, 100.0, 0.0, share),
        WaitCalls(Counted.exactly(3), 250 * MS), copies,
    )  # fmt: skip
    return GpuCalls(T0, span_ns, (one,), (), {Group.COPY: share})


def test_subject_of_a_gpu_process_tells_its_own_use_from_others() -> None:
    made = framer({7: "/job", 8: "/noisy"})
    made.look([
        reading({Field.UTILISATION: 90}, T0 + S, 0, {7: 30, 8: 55}),
        reading({Field.UTILISATION: 5}, T0 + S, 1, {7: 5}),
    ])  # fmt: skip
    made.take([_calls(7, share=0.5), cpu({})])
    frame = _frame(made)
    job, noisy = frame.subjects["/job"], frame.subjects["/noisy"]
    assert (job.gpus, noisy.gpus) == ((0, 1), (0,))
    assert job.signals["gpu_own_percent"] == 30
    assert job.signals["gpu_others_percent"] == 55
    assert job.signals["gpu_launches_per_s"] == 100
    assert job.signals["copy_to_device_bytes_per_s"] == 8_000
    assert job.signals["gpu_wait_ms_per_s"] == 250
    assert noisy.signals["gpu_others_launches_per_s"] == 100
    assert frame.gpus[1]["copy_to_device_bytes_per_s"] == 4_000
    assert frame.gpus[0]["gpu_processes_count"] == 2


def test_gpu_counters_become_rates_and_a_reset_says_nothing() -> None:
    gpus = GpuSignals()
    errors = {Field.PCIE_REPLAYS: 10, Field.XID_EVENTS: 1, Field.XID_LAST: 13}
    gpus.look([reading(errors, T0)])
    assert "pcie_replays_per_s" not in gpus.signals(T0)[0]
    grown = {Field.PCIE_REPLAYS: 30, Field.XID_EVENTS: 2, Field.XID_LAST: 79}
    gpus.look([reading(grown, T0 + 5 * S)])
    found = gpus.signals(T0 + 6 * S)[0]
    assert found["pcie_replays_per_s"] == 4
    assert found["xids_faulty_per_s"] == pytest.approx(0.2)
    assert found["xids_memory_per_s"] == found["xids_other_per_s"] == 0
    gpus.look([reading({Field.PCIE_REPLAYS: 0}, T0 + 10 * S)])
    assert "pcie_replays_per_s" not in gpus.signals(T0 + 11 * S)[0]
    assert gpus.signals(T0 + 20 * S) == {}


def test_lost_gpu_is_still_its_users_and_says_that_it_is_gone() -> None:
    """With the driver's list of processes went the knowledge of whose GPU it was."""
    made = framer({7: "/job"})
    gone = Gap(GapKind.UNPLUGGED, "GPU is lost")

    def lost(at_ns: int, code: int = 0) -> DeviceReading:
        told = {Field.XID_EVENTS: 1, Field.XID_LAST: code} if code else {}
        fields = {Field.UTILISATION: gone, Field.POWER: gone} | told
        return DeviceReading(0, "GPU-0", "", at_ns, at_ns, fields)

    made.look([reading({Field.UTILISATION: 90, Field.XID_EVENTS: 0}, T0, 0, {7: 90})])
    made.frame(T0)
    made.take([cpu({})])
    calm = made.frame(T0 + S)
    assert calm is not None
    assert calm.gpus[0]["gpu_lost_count"] == 0
    made.look([lost(T0 + S, code=79)])
    struck = made.frame(T0 + 2 * S)
    assert struck is not None
    assert struck.subjects["/job"].gpus == (0,)
    assert struck.gpus[0]["gpu_lost_count"] == 1
    assert struck.gpus[0]["xids_faulty_per_s"] == 1
    assert "gpu_busy_percent" not in struck.gpus[0]
    for second in range(2, 75):
        made.look([lost(T0 + second * S)])
        later = made.frame(T0 + (second + 1) * S)
        assert later is not None
        assert later.gpus[0]["gpu_lost_count"] == 1
        users = [one.gpus for one in later.subjects.values() if one.gpus]
        assert users == ([(0,)] if second <= 66 else []), "the last list is 60 s old, and one look"
        assert all("gpu_own_percent" not in one.signals for one in later.subjects.values())


def test_gpu_that_was_left_alone_is_not_silent_for_longer() -> None:
    gpus = GpuSignals()

    def unanswered(kind: GapKind, at_ns: int) -> DeviceReading:
        return all_gaps(0, [Field.UTILISATION], Gap(kind, "late"), at_ns)

    gpus.look([reading({Field.UTILISATION: 90}, T0)])
    gpus.look([unanswered(GapKind.TIMED_OUT, T0 + S)])
    assert gpus.signals(T0 + S)[0]["gpu_silent_count"] == 1
    gpus.look([unanswered(GapKind.LEFT_ALONE, T0 + 9 * S)])
    assert gpus.signals(T0 + 9 * S) == {}
    gpus.look([reading({Field.UTILISATION: 90}, T0 + 70 * S)])
    assert gpus.signals(T0 + 70 * S)[0]["gpu_silent_count"] == 0


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [(0x0, ""), (0x20, "thermal"), (0x04, "power"), (0x48, "thermal hardware"),
     (0x80, "power hardware"), (0x1, "")],
)  # fmt: skip
def test_gpu_throttle_reasons_are_told_apart(bits: int, reasons: str) -> None:
    gpus = GpuSignals()
    gpus.look(
        [reading({Field.THROTTLE: bits, Field.POWER: 350_000, Field.POWER_LIMIT: 700_000}, T0)]
    )
    found = gpus.signals(T0)[0]
    for kind in ("thermal", "power", "hardware"):
        assert found[f"throttled_{kind}_percent"] == (100 if kind in reasons else 0)
    assert found["power_limit_percent"] == 50


def test_faults_of_hardware_are_counted_by_kind() -> None:
    made = framer(faults=True)
    made.take([Observation("hardware_faults", "ssd", 1, T0)] * 2)
    made.take([Observation("hardware_faults", "server_chassis", 1, T0)])
    host = _frame(made).host
    assert (host["faults_disk_per_s"], host["faults_other_per_s"]) == (2, 1)
    assert host["faults_memory_per_s"] == 0
    assert _frame(made, 2).host["faults_disk_per_s"] == 0


def test_frame_leaves_out_what_the_kernel_has_no_hook_for(tmp_path: Path) -> None:
    class Source:
        absent = (Absence("on_page_fault", "this kernel has no tracepoint page_fault_user"),)

    (tmp_path / "online").write_text("0\n")
    lost = lacking([Source(), object()], tmp_path / "online")
    assert lost == {"page_faults_per_s", "numa_migrations_per_s"}
    (tmp_path / "online").write_text("0-1\n")
    assert lacking([], tmp_path / "online") == frozenset()
    made = framer(watch=["/job"])
    made.lack(lost)
    made.take([cpu({}), cgroup({"/job": {"cpu_ns": 1}}), ticks([T0, T0 + S], switches=[0, 5])])
    frame = _frame(made)
    for signals in (frame.host, frame.cgroups["/job"], frame.subjects["/job"].signals):
        assert "cpu_ms_per_s" in signals
        assert "page_faults_per_s" not in signals
    assert np.isnan(frame.fine[FINE.index("page_faults_per_s")]).all()
    assert frame.fine[FINE.index("switches_per_s"), 9] == 5


def test_place_of_a_process_is_in_the_cpu_hierarchy() -> None:
    assert cpu_cgroup("12:cpu,cpuacct:/job\n3:memory:/m\n0::/u\n") == "/job"
    assert cpu_cgroup("0::/user.slice/a:b\n") == "/user.slice/a:b"
    assert cpu_cgroup("nonsense") == "/"


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


def test_pressure_of_a_subjects_cgroup_is_what_grew(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    file = tmp_path / "job" / "memory.pressure"
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    made = framer(watch=["/job"], pressure=CgroupPressure(tmp_path))
    for second, stalled_us in ((1, 500), (2, 40_500)):
        file.write_text(f"some {line}{stalled_us}\nfull {line}0\n")
        made.take([cpu({}), cgroup({"/job": {"cpu_ns": 1}}, T0 + second * S)])
        signals = _frame(made, second).subjects["/job"].signals
    assert signals["pressure_memory_some_ms_per_s"] == pytest.approx(40)
    assert signals["pressure_memory_full_ms_per_s"] == 0
    assert "pressure_io_some_ms_per_s" not in signals
