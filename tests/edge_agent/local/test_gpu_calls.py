"""GPU calls on their way to the live view and the local history: added up right, and bounded."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.records.gpu_calls import CountedCalls, Direction, GpuCalls, ProbeGroup
from edge_agent.local.history import History, HistorySection
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.local_rows import EventRow, MetricRow, RecordRow
from edge_agent.local.recent import MOST_LINES, Recent
from edge_agent.local.spans import KEPT_KERNELS, KEPT_PROCESSES, REST, keep_busiest, merge
from edge_agent.local.view_lines import document
from tests.calls_kit import (
    GEMM,
    SERVER,
    TRAINER,
    governor_state,
    gpu_calls,
    many_calls,
    sampled_calls,
)
from tests.local_kit import BOOT, POINT, UNIX, S, at, flattener

SMALL = HistorySection(max_bytes=4 << 20)


def seen(*records: object) -> Recent:
    recent = Recent()
    recent.add(flattener().rows("probes", records))
    return recent


def kept(path: Path, *records: object) -> dict[str, list[dict[str, Any]]]:
    """Write records to a history, close it, and read everything back."""
    history = History(path, SMALL, boot=lambda: "boot-1")
    history.note_clock(POINT)
    for record in records:
        history.add(flattener().rows("probes", [record]))
    history.close()
    assert not +history.dropped
    with HistoryReader(path) as reader:
        return {kind: list(reader.rows(kind)) for kind in ("kernel", "process", "metric", "event")}


def test_merging_adds_counts_and_keeps_the_last_state() -> None:
    later = gpu_calls(BOOT + S, times=2)
    (trainer,) = later.processes
    assert trainer.memory is not None
    freed = replace(trainer, memory=trainer.memory._replace(live_bytes=7))
    whole = merge([gpu_calls(), replace(later, processes=(freed,))])
    (one,) = whole.processes
    assert (whole.boottime_ns, whole.span_ns) == (BOOT, 2 * S)
    assert one.launches == CountedCalls.exactly(3300)
    assert one.memory is not None
    assert one.memory.live_bytes == 7
    assert one.wait_share(whole.span_ns) == pytest.approx(0.375)
    assert {copy.direction: (copy.copies.seen, copy.bytes) for copy in one.copies} == {
        Direction.HOST_TO_DEVICE: (21, 22_020_096),
        Direction.DEVICE_TO_HOST: (6, 6_144),
    }
    assert one.copies[0].log2_bins == ((12, 9), (20, 12))
    assert (one.collectives[0].calls.seen, one.collectives[0].bytes) == (12, 1200 << 20)
    assert one.errors[0].failures == 9
    assert {row.kernel: row.launches.seen for row in whole.kernels}[GEMM] == 3000


def test_merging_weighs_shares_by_time_and_adds_variances() -> None:
    sampled = sampled_calls()
    exact = replace(
        sampled,
        span_ns=2 * S,
        shares={},
        kernels=(sampled.kernels[0]._replace(launches=CountedCalls.exactly(100)),),
    )
    (kernel,) = merge([sampled, exact]).kernels
    assert kernel.launches[:3] == (600, 2100.0, 10_000.0)
    assert kernel.launches.share == pytest.approx(0.4)


def test_merging_fills_what_was_not_watched_with_the_mean_of_the_rest() -> None:
    seen, idle = gpu_calls(), GpuCalls(BOOT + S, S, (), ())
    blind = GpuCalls(BOOT + 2 * S, 2 * S, (), (), {ProbeGroup.LAUNCH: 0.0})
    whole = merge([seen, idle, blind])
    (one,) = whole.processes
    # 1100 launches in two seconds that were watched, of four; copies were watched all the time.
    assert one.launches[:3] == (1100, 2200.0, 0.0)
    assert one.launches.share == pytest.approx(0.5)
    assert one.copies[0].copies == CountedCalls.exactly(7)
    sampled = replace(sampled_calls(), span_ns=2 * S)
    (server,) = merge([sampled, blind]).processes
    assert server.launches == CountedCalls(500, 4000.0, 40_000.0, 0.125)


def test_keeping_the_busiest_loses_no_launch_of_a_kept_process() -> None:
    calls = many_calls(5, 4)
    fewer, left_out = keep_busiest(calls, kernels=3, processes=2)
    assert left_out == 3
    assert [one.process.pid for one in fewer.processes] == [1004, 1003]
    per_process = 1 + 2 + 3 + 4
    assert sum(one.launches.value for one in fewer.kernels) == 2 * per_process
    assert sum(one.kernel == REST for one in fewer.kernels) == 2


def test_view_shows_rates_of_the_last_ten_seconds() -> None:
    recent = seen(*(gpu_calls(BOOT + i * S, times=i + 1) for i in range(20)))
    view = recent.view(at(BOOT + 20 * S))
    launches = sum(1000 * (i + 1) for i in range(10, 20))
    assert (view.span_s, view.live) == (10, True)
    assert (view.kernels[0].kernel, view.kernels[0].seconds) == (GEMM, 10)
    rate = pytest.approx(launches / 10)
    gemm = view.kernels[0].launches
    assert [gemm.value, gemm.low, gemm.high] == [rate] * 3
    assert gemm.error == 0
    (one,) = view.processes
    assert (one.name, one.slurm_job) == ("python3", "77")
    assert one.memory is not None
    assert one.memory["peak_bytes"] == 5 << 30
    assert view.families[0].family == "gemm"
    assert view.families[0].launches_per_s == rate
    copied = {row.direction: row.bytes_per_s for row in view.copies}
    assert copied["host_to_device"] == pytest.approx(7_340_032 * 155 / 10)
    assert view.collectives[0].mean_us == pytest.approx(2000)


def test_view_corrects_and_shows_the_error_of_what_was_sampled() -> None:
    view = seen(sampled_calls(), governor_state()).view(at(BOOT + 9 * S))
    (kernel,) = view.kernels
    assert kernel.launches.value == pytest.approx(2000 / 8)
    assert kernel.launches.error == pytest.approx(1.959964 * 100 / 8)
    assert kernel.launches.share == 0.25
    assert kernel.threads_per_launch == 128
    assert view.processes[0].wait_share == pytest.approx(0.5 / (8 * 0.25))
    assert view.copies[0].bytes_per_s == pytest.approx((1 << 20) * 4 / 8)
    governor = view.governor
    assert governor is not None
    assert (governor["period_s"], governor["duty"], governor["worst_pid"]) == (8, 0.25, SERVER.pid)
    assert governor["dropped"] == dict.fromkeys(("other", "synchronise"), "over the budget")
    assert governor["lost"] == {"samples": 17}
    assert governor["unnamed"] == {"handle": 0.125}


def test_copies_of_several_processes_are_added_up_over_the_time_of_the_view() -> None:
    view = seen(replace(many_calls(3, 1), span_ns=10 * S)).view(at(BOOT + 10 * S))
    one, *_ = view.processes[0].copies
    whole, *_ = view.copies
    assert one.direction == whole.direction == "host_to_device"
    assert whole.copies.value == pytest.approx(3 * one.copies.value)
    assert whole.bytes_per_s == pytest.approx(3 * one.bytes_per_s)
    assert whole.log2_bins == tuple((place, 3 * count) for place, count in one.log2_bins)


def test_view_says_unknown_where_nothing_was_attached() -> None:
    calls = sampled_calls()
    blind = CountedCalls(0, 0.0, float("inf"), 0.0)
    (server,) = calls.processes
    server = replace(server, launches=blind, waits=server.waits._replace(calls=blind))
    nothing = dict.fromkeys(ProbeGroup, 0.0)
    recent = seen(replace(calls, processes=(server,), shares=nothing))
    view = recent.view(at(BOOT + 9 * S))
    (shown,) = view.processes
    assert shown.launches is not None
    assert (shown.launches.high, shown.launches.error, shown.wait_share) == (None, None, None)
    json.dumps(document(view), allow_nan=False)


def test_view_shows_a_long_period_until_the_next_is_due() -> None:
    recent = seen(sampled_calls(), governor_state())
    assert recent.view(at(BOOT + 15 * S)).governor
    assert recent.view(at(BOOT + 23 * S)).processes
    old = recent.view(at(BOOT + 25 * S))
    assert (old.governor, old.processes, old.kernels, old.copies) == (None, (), (), ())


def test_view_of_gpu_calls_is_bounded_and_clean() -> None:
    calls = many_calls(100, 3)
    name = "k\x1b[2J" + "x" * 5000
    kernels = (one._replace(kernel=f"{name}{n}") for n, one in enumerate(calls.kernels))
    calls = replace(calls, kernels=tuple(kernels))
    view = seen(*[calls] * 100).view(at(BOOT + S))
    assert len(view.processes) == MOST_LINES
    assert view.left_out["processes"] == 100 - MOST_LINES
    assert "\x1b" not in json.dumps(document(view), ensure_ascii=False)
    assert max(len(line.kernel) for line in view.kernels) <= 200


def test_history_keeps_kernels_and_processes_in_spans_of_ten_seconds(tmp_path: Path) -> None:
    found = kept(tmp_path / "h", *(gpu_calls(BOOT + i * S) for i in range(25)))
    assert [row["span_ns"] for row in found["process"]] == [10 * S, 10 * S, 5 * S]
    first = found["process"][0]
    assert first["unix_ns"] == UNIX
    assert (first["name"], first["pid"], first["start_ns"]) == ("python3", *TRAINER)
    assert (first["container"], first["slurm_job"]) == ("c" * 64, "77")
    assert (first["launches"], first["seen"], first["share"]) == (11_000, 11_000, 1)
    assert first["wait_share"] == pytest.approx(0.25)
    assert (first["live_bytes"], first["peak_bytes"]) == (3 << 30, 5 << 30)
    assert first["oldest_age_ns"] == 1800 * S
    assert first["copies"][0] == {
        "direction": "host_to_device", "seen": 70, "copies": 70.0, "variance": 0.0, "below": 0.0,
        "above": 0.0, "share": 1.0, "bytes": 73_400_320, "log2_bins": [[12, 30], [20, 40]],
    }  # fmt: skip
    assert first["collectives"][0]["communicator"] == "0x7f00aa00"
    assert first["errors"] == [{"call": "cudart.alloc", "code": 2, "failures": 30}]
    kernels = [row for row in found["kernel"] if row["name"] == GEMM]
    assert [row["launches"] for row in kernels] == [10_000, 10_000, 5_000]
    assert {row["process"] for row in kernels} == {"python3"}


def test_history_keeps_what_the_governor_did(tmp_path: Path) -> None:
    dropped, back = governor_state(), replace(governor_state(BOOT + 8 * S), dropped={})
    flat = flattener()
    rows = [row for state in (dropped, dropped, back) for row in flat.rows("probes", [state])]
    events = [(row.name, row.key) for row in rows if isinstance(row, EventRow)]
    assert sorted(events) == [
        ("probes_back", "other"), ("probes_back", "synchronise"),
        ("probes_dropped", "other"), ("probes_dropped", "synchronise"),
    ]  # fmt: skip
    numbers = {(row.name, row.key): row.value for row in rows if isinstance(row, MetricRow)}
    assert numbers["probes.measured_share", ""] == 0.0041
    assert numbers["probes.group_share", "launch"] == 0.25
    assert numbers["probes.lost", "samples"] == 17
    found = kept(tmp_path / "h", governor_state())
    assert {row["name"] for row in found["metric"]} >= {"probes.duty", "probes.budget_share"}
    assert found["event"][0]["detail"] == "over the budget"


def test_history_of_gpu_calls_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "h"
    history = History(path, SMALL, boot=lambda: "boot-1")
    history.note_clock(POINT)
    flood = replace(many_calls(100, 6), span_ns=10 * S)
    for i in range(12):
        moved = replace(flood, boottime_ns=BOOT + 10 * i * S)
        history.add([RecordRow("probes", moved)])
    history.close()
    assert history.dropped["gpu_processes"] == 12 * (100 - KEPT_PROCESSES)
    with HistoryReader(path) as reader:
        kernels, processes = list(reader.rows("kernel")), list(reader.rows("process"))
    assert len(kernels) <= 12 * (KEPT_KERNELS + KEPT_PROCESSES)
    assert len(processes) == 12 * KEPT_PROCESSES
    assert path.stat().st_size < 4 << 20


def test_history_takes_numbers_that_a_process_made_up(tmp_path: Path) -> None:
    (trainer,) = gpu_calls().processes
    copies = (trainer.copies[0]._replace(bytes=1 << 70),)
    collectives = (trainer.collectives[0]._replace(communicator=(1 << 64) - 1, bytes=1 << 80),)
    assert trainer.memory is not None
    memory = trainer.memory._replace(live_bytes=1 << 64)
    made_up = replace(trainer, copies=copies, collectives=collectives, memory=memory)
    found = kept(tmp_path / "h", GpuCalls(BOOT, 10 * S, (made_up,), ()))
    (row,) = found["process"]
    assert row["live_bytes"] == row["copies"][0]["bytes"] == (1 << 63) - 1
    assert row["collectives"][0]["communicator"] == "0xffffffffffffffff"


def test_history_of_an_older_agent_is_read(tmp_path: Path) -> None:
    path = tmp_path / "h"
    kept(path, governor_state())
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE kernel_counts")
        db.execute("DROP TABLE process_counts")
    with HistoryReader(path) as reader:
        assert list(reader.rows("kernel")) == list(reader.rows("process")) == []
        assert list(reader.rows("metric"))
        assert reader.span() is not None
