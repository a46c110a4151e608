"""What the library counts, in a real process whose CUPTI is a fake."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.segment import ROWS, RecordingState, RowKind, SegmentUnsettled, Snapshot
from scripts.gpu_time.listening import OFF, ON, Listening, Sum, listening, sums
from tests.gpu_time_kit import Program, program
from tests.wait_kit import until

pytestmark = pytest.mark.slow

CALLS = (
    "cuptiGetVersion", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable",
    "cuptiActivityDisable", "cuptiActivityFlushAll", "cuptiActivityGetNextRecord",
    "cuptiActivityGetNumDroppedRecords", "cuptiActivitySetAttribute", "cuptiSubscribe",
    "cuptiEnableCallback", "cuptiFinalize",
)  # fmt: skip
NEVER_REPORT = ("cuptiGetVersion",)
RECORD_NOTHING = ("cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiSubscribe")
AT_ONCE = 10_000  # of the 19,000 that all buffers hold
RECORDS_OF_A_BUFFER = 607
READ_NOTHING = ("cuptiActivityFlushAll", "cuptiActivityGetNextRecord")


@pytest.fixture
def agent() -> Iterator[Listening]:
    with listening() as found:
        yield found


@pytest.fixture
def recording(agent: Listening) -> Iterator[Program]:
    """A program all of whose work is recorded."""
    agent.plan(ON)
    with program(agent.path) as found:
        agent.wait(found.pid, RecordingState.ON)
        yield found


def counted(agent: Listening, pid: int, records: int) -> Snapshot:
    """Give the state once so many records were read."""
    until(lambda: look(agent, pid).header["records"] >= records)
    return look(agent, pid)


def look(agent: Listening, pid: int) -> Snapshot:
    """Give the state, however busy the writer is."""
    for _ in range(100):
        with suppress(SegmentUnsettled):
            return agent.look(pid)
    raise AssertionError("expected a state at rest")


def test_counts_and_times_are_exact(agent: Listening, recording: Program) -> None:
    recording.ask("kernels gemm 20000 0 500")
    recording.ask("kernels gemm 7 1 3")
    recording.ask("kernels node 5 0 10 7")
    recording.ask("copies 1 4 0 100")
    recording.ask("memsets x 2 0 5")
    recording.ask("overheads x 2 0 6")
    seen = counted(agent, recording.pid, 20_020)
    found = {
        (int(row["kind"]), int(row["device"]), name): Sum(int(row["count"]), int(row["total_ns"]))
        for name, row in zip(seen.names, seen.rows, strict=True)
        if row["count"]
    }
    assert found == {
        (RowKind.KERNEL, 0, "gemm"): Sum(20_000, 10_000_000),
        (RowKind.KERNEL, 1, "gemm"): Sum(7, 21),
        (RowKind.NODE, 0, "node"): Sum(5, 50),
        (RowKind.COPY, 0, "copy HtoD"): Sum(4, 400),
        (RowKind.MEMSET, 0, "memset"): Sum(2, 10),
    }
    header = seen.header
    assert (header["kernels"], header["copies"], header["memsets"]) == (20_012, 4, 2)
    assert (header["overheads"], header["overhead_ns"]) == (2, 12)
    assert (header["launches"], header["numbered"]) == (20_007, 20_007)
    (gemm,) = (row for row in seen.rows if row["count"] == 20_000)
    assert (int(gemm["bins"][8]), int(gemm["longest_ns"])) == (20_000, 500)
    assert seen.uuids[:3] == ("01010101-0101-0101-0101-010101010101",
                              "02020202-0202-0202-0202-020202020202", "")  # fmt: skip


def test_records_without_times_or_of_unknown_kinds_are_counted_and_in_no_row(
    agent: Listening, recording: Program
) -> None:
    recording.ask("unended gemm 3 0 5")
    recording.ask("reversed gemm 4 0 5")
    recording.ask("unknown x 6")
    recording.ask("lost x 9")
    recording.ask("kernels gemm 1 0 5")
    seen = counted(agent, recording.pid, 14)
    until(lambda: look(agent, recording.pid).header["records_lost_cupti"] == 9)
    assert (seen.header["bad_times"], seen.header["unknown_records"]) == (7, 6)
    assert sum(total.launches for total in sums(seen).values()) == 1


def test_a_million_unknown_names_are_in_the_totals_within_bounded_memory(
    agent: Listening, recording: Program
) -> None:
    for asked in range(AT_ONCE, 1_000_001, AT_ONCE):
        recording.ask(f"names x {AT_ONCE}")
        counted(agent, recording.pid, asked - RECORDS_OF_A_BUFFER)
        if asked == 5 * AT_ONCE:
            before = resident_kib(recording.pid)
    seen = counted(agent, recording.pid, 1_000_000)
    assert sum(t.launches for t in sums(seen).values()) == 1_000_000
    assert sum(t.ns for t in sums(seen).values()) == 100_000_000
    assert seen.header["records_lost_cupti"] == seen.header["buffers_refused"] == 0
    assert len(seen.rows) == ROWS
    assert int(seen.rows[0]["count"]) == seen.header["without_row"]
    assert resident_kib(recording.pid) - before < 8 << 10


def resident_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:"))


def test_names_are_used_up_before_rows(agent: Listening, recording: Program) -> None:
    """Names of 600 bytes and more fill their memory at 3,500 rows."""
    recording.ask("long-names x 4000")
    seen = counted(agent, recording.pid, 4000)
    assert len(seen.rows) < ROWS
    assert seen.header["names_used"] > (1 << 21) - 700
    assert sum(total.launches for total in sums(seen).values()) == 4000
    assert seen.header["without_row"] == 4001 - len(seen.rows)


def test_work_beyond_the_buffers_is_lost_and_said_so_and_ends_the_window(agent: Listening) -> None:
    agent.plan(ON)
    with program(agent.path, FAKE_CUPTI_READ_US="1000") as busy:
        agent.wait(busy.pid, RecordingState.ON)
        busy.ask("flat-out gemm 100000 0 10")
        until(lambda: "finalize behind a call" in busy.calls)
        header = look(agent, busy.pid).header
        assert header["buffers_refused"] > 0
        assert header["records"] + header["records_lost_cupti"] <= 100_000
        assert header["launches"] == header["records"] < 100_000
        agent.wait(busy.pid, RecordingState.ON)  # in the next period
        busy.ask("kernels gemm 1 0 10")
        header = counted(agent, busy.pid, header["records"] + 1).header
        assert (header["windows"], header["numbered"]) == (2, 100_001)


def test_wrong_times_end_a_window_and_the_next_has_cupti_anew(
    agent: Listening, recording: Program
) -> None:
    """CUPTI gives none else once it has begun, until it has left."""
    recording.ask("reversed gemm 100 0 5")
    until(lambda: "finalize behind a call" in recording.calls)
    until(lambda: look(agent, recording.pid).header["windows"] == 2)
    agent.wait(recording.pid, RecordingState.ON)
    recording.ask("reversed gemm 50 0 5")
    recording.ask("kernels gemm 5 0 10")
    header = counted(agent, recording.pid, 155).header
    assert (header["bad_times"], header["windows"]) == (150, 2)
    assert recording.calls.count("subscribe") == 2


def test_a_million_kernels_of_graphs_end_a_window(agent: Listening, recording: Program) -> None:
    for asked in range(AT_ONCE, 1_000_001, AT_ONCE):
        recording.ask(f"kernels node {AT_ONCE} 0 10 7")
        counted(agent, recording.pid, asked - RECORDS_OF_A_BUFFER)
    until(lambda: "finalize behind a call" in recording.calls)
    until(lambda: look(agent, recording.pid).header["windows"] == 2)
    header = look(agent, recording.pid).header
    assert (header["records"], header["buffers_refused"]) == (1_000_000, 0)


def test_windows_last_as_long_as_was_asked_however_long_attaching_takes(agent: Listening) -> None:
    agent.plan(WindowPlan(60, 400))
    with program(agent.path, FAKE_CUPTI_SUBSCRIBE_US="40000") as one:
        agent.wait(one.pid)
        until(lambda: look(agent, one.pid).header["windows"] > 4)
        header = look(agent, one.pid).header
        # A window in nine is cut off by the end of its period: all four are 2 times in a million.
        assert header["on_ns"] / 4 > 27_000_000


def test_delays_are_added_up_where_cupti_tells_them(agent: Listening) -> None:
    agent.plan(ON)
    with program(agent.path, FAKE_CUPTI_SUBMITTED_NS="250") as delayed:
        agent.wait(delayed.pid, RecordingState.ON)
        delayed.ask("kernels gemm 40 0 10")
        seen = counted(agent, delayed.pid, 40)
        (gemm,) = (row for row in seen.rows if row["count"])
        assert (int(gemm["delays"]), int(gemm["delay_ns"])) == (40, 10_000)


@pytest.mark.parametrize(
    ("choice", "kind"), [("whole", RowKind.GRAPH), ("kernels", RowKind.NODE), ("", RowKind.NODE)]
)
def test_graphs_are_recorded_as_the_program_was_started(
    agent: Listening, choice: str, kind: RowKind
) -> None:
    agent.plan(ON)
    with program(agent.path, POINTILLIST_GPU_TIME_GRAPHS=choice) as one:
        agent.wait(one.pid, RecordingState.ON)
        one.ask("kernels node 6 0 10 7")  # a graph's
        one.ask("graphs x 2 0 30 7")
        one.ask("kernels gemm 1 0 10")
        seen = counted(agent, one.pid, 3 if choice == "whole" else 7)
        kinds = {int(row["kind"]) for row in seen.rows if row["count"]}
        assert kinds == {RowKind.KERNEL, kind}
        assert seen.header["graphs"] == (2 if choice == "whole" else 0)


def test_busy_time_is_told_of_a_program_that_launches_little_and_is_always_recorded(
    agent: Listening, recording: Program
) -> None:
    for device in range(2):
        recording.ask(f"kernels gemm 10 {device} 500")
    until(lambda: look(agent, recording.pid).devices["busy_ns"][:2].tolist() == [5000, 5000])
    header = look(agent, recording.pid).header
    assert (header["state"], header["windows"]) == (RecordingState.ON, 1)


def test_launches_of_four_threads_are_all_counted(agent: Listening, recording: Program) -> None:
    recording.ask("threaded gemm 3000 4 100")
    seen = counted(agent, recording.pid, 12_000)
    assert sums(seen)[RowKind.KERNEL, "gemm"] == Sum(12_000, 1_200_000)
    assert seen.header["launches"] == 12_000


def test_a_program_goes_on_whichever_call_of_cupti_fails(agent: Listening) -> None:
    agent.plan(ON)
    with ExitStack() as stack:
        programs = {
            call: stack.enter_context(program(agent.path, FAKE_CUPTI_FAIL=call)) for call in CALLS
        }
        reporting = {call: one for call, one in programs.items() if call not in NEVER_REPORT}
        for one in reporting.values():
            agent.wait(one.pid)
        time.sleep(0.3)
        for one in programs.values():
            assert [one.said, one.ask("kernels gemm 100 0 10")] == ["ready", "done 100"]
        time.sleep(0.3)
        for call, one in reporting.items():
            header = agent.look(one.pid).header
            expected = RecordingState.REFUSED if call in RECORD_NOTHING else RecordingState.ON
            assert (call, header["state"], header["error"]) == (
                call, expected, 35 if call in RECORD_NOTHING else 0,
            )  # fmt: skip
            nothing = call in RECORD_NOTHING or call in READ_NOTHING
            assert (call, header["records"]) == (call, 0 if nothing else 100)
        agent.plan(OFF)
        for call, one in reporting.items():
            if call not in RECORD_NOTHING:
                agent.wait(one.pid, RecordingState.OFF)
        agent.plan(ON)
        for call, one in reporting.items():
            if call not in RECORD_NOTHING:
                agent.wait(one.pid, RecordingState.ON)
        for call, one in programs.items():
            assert (call, one.end()) == (call, 0)
        assert set(agent._reporters) == {one.pid for one in reporting.values()}


def test_another_subscriber_is_left_alone(agent: Listening) -> None:
    agent.plan(OFF)
    with program(agent.path) as profiled:
        assert profiled.ask("occupy") == "subscribed 0"
        agent.wait(profiled.pid)
        agent.plan(ON)
        agent.wait(profiled.pid, RecordingState.OCCUPIED)
        assert profiled.ask("kernels gemm 5 0 10") == "done 5"
        assert agent.settled(profiled.pid).header["records"] == 0
        assert profiled.calls == ["subscribe", "subscribe refused"]
        assert profiled.end() == 0


@pytest.mark.parametrize("version", ["18", "23"])
def test_a_cupti_that_cannot_leave_safely_is_left_alone(agent: Listening, version: str) -> None:
    with program(agent.path, FAKE_CUPTI_VERSION=version) as old:
        time.sleep(0.6)
        assert frozenset(agent._reporters) == frozenset()
        assert old.ask("kernels gemm 5 0 10") == "done 5"
        assert (old.calls, old.end()) == ([], 0)


def test_a_window_ends_with_cupti_taken_out_behind_a_call_of_the_driver(
    agent: Listening, recording: Program
) -> None:
    agent.plan(OFF)
    agent.wait(recording.pid, RecordingState.OFF)
    recording.ask("kernels gemm 5 0 10")
    until(lambda: "finalize behind a call" in recording.calls)
    enabled = recording.calls.count("enable")
    assert recording.calls == [
        "subscribe", *["enable"] * enabled, *["disable"] * enabled, "finalize behind a call",
    ]  # fmt: skip
    agent.plan(ON)
    agent.wait(recording.pid, RecordingState.ON)
    recording.ask("kernels gemm 5 0 10")
    header = agent.settled(recording.pid).header
    assert (header["windows"], header["detaches"], header["launches"]) == (2, 1, 5)
    assert header["numbered"] == 5


def test_launches_between_windows_are_numbered(agent: Listening, recording: Program) -> None:
    recording.ask("kernels gemm 10 0 10")
    counted(agent, recording.pid, 10)
    agent.plan(OFF)
    agent.wait(recording.pid, RecordingState.OFF)
    until(lambda: "finalize behind a call" in recording.calls)
    recording.ask("flat-out burst 3000000 0 10")
    agent.plan(ON)
    agent.wait(recording.pid, RecordingState.ON)
    recording.ask("kernels gemm 1 0 10")
    header = counted(agent, recording.pid, 11).header
    assert (header["launches"], header["numbered"]) == (11, 3_000_011)


def test_a_window_has_no_more_records_than_it_was_asked_for(agent: Listening) -> None:
    agent.plan(WindowPlan(60_000, 60_000, 1000))
    with program(agent.path) as busy:
        agent.wait(busy.pid, RecordingState.ON)
        busy.ask("kernels gemm 5000 0 10")
        agent.wait(busy.pid, RecordingState.OFF)
        busy.ask("kernels gemm 5000 0 10")
        assert 1000 <= agent.settled(busy.pid).header["records"] <= 5000
