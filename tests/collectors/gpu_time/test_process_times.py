"""What the source tells this host's views of each process: estimates, states, and who is silent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.gpu_time.found_programs import gpu_programs, has_library
from collectors.gpu_time.listener import Listener
from collectors.gpu_time.recorded_work import CounterDeltas, TimedSpan, TimedSpans
from collectors.gpu_time.segment import RecordingState, RowKind, RowNames, Snapshot
from collectors.records.gpu_time import GpuTimes, TimingState
from tests.followed_kit import FakeLibrary, Followed
from tests.gpu_time_kit import program
from tests.segment_kit import FakeMemory, snapshot
from tests.wait_kit import until

S = 1_000_000_000


def told(followed: Followed) -> GpuTimes:
    """What one drain says."""
    (times,) = (one for one in followed.source.drain(boottime_ns()) if isinstance(one, GpuTimes))
    return times


def test_a_process_is_told_with_its_kernels_and_what_they_stand_for(
    followed: Followed, library: FakeLibrary
) -> None:
    assert [process.state for process in told(followed).processes] == [TimingState.STARTING]
    library.launched(3, 30)
    library.head(numbered=300, cupti_version=130_000, written_ns=boottime_ns() + 10 * S,
                 bad_times=2, on_ns=S // 10)  # fmt: skip
    times = told(followed)
    (process,) = times.processes
    (kernel,) = process.kernels
    assert (process.process.pid, process.state, process.cupti) == (
        os.getpid(), TimingState.MEASURED, 130_000,
    )  # fmt: skip
    assert (kernel.kernel, kernel.family) == ("gemm", "gemm")
    assert kernel.launches == pytest.approx(300)
    assert kernel.time.value_ns == pytest.approx(3_000)
    assert kernel.time.error_ns is process.time.error_ns is None
    assert (process.lost, process.recorded_ns) == (2, S // 10)
    assert 0 < process.span_ns < 60 * 10**9
    again = told(followed).processes[0]
    assert (again.span_ns, again.kernels, again.lost) == (0, (), 0)


def test_the_first_record_is_of_now(followed: Followed) -> None:
    before_ns = boottime_ns()
    times = told(followed)
    assert (times.boottime_ns >= before_ns, times.span_ns, times.gpus) == (True, 0, 2)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (RecordingState.REFUSED, TimingState.REFUSED),
        (RecordingState.OCCUPIED, TimingState.OCCUPIED),
        (77, TimingState.UNKNOWN),
    ],
)
def test_a_process_that_cannot_be_recorded_is_told_with_its_reason(
    followed: Followed, library: FakeLibrary, state: int, found: TimingState
) -> None:
    library.launched(1)
    library.head(state=state, error=35)
    (process,) = told(followed).processes
    assert (process.state, process.error) == (found, 35)


def test_users_of_a_gpu_that_report_nothing_are_named(followed: Followed) -> None:
    followed.users.see({0: [os.getpid()], 1: []}, boottime_ns())
    told(followed)
    times = told(followed)
    (process,) = times.processes
    assert (process.state, process.gpus, bool(process.name)) == (TimingState.NO_LIBRARY, (0,), True)
    assert (set(times.known), set(times.covered)) == ({0, 1}, set())


def state_of(name: str, *grown: int, delays: int = 0, **header: int) -> Snapshot:
    """A state with one kernel and one device."""
    count, total_ns, busy_ns, copy_ns = grown
    made = snapshot((name, RowKind.KERNEL, count, total_ns), **header)
    made.rows[1]["delay_ns"], made.rows[1]["delays"] = 50 * delays, delays
    devices = made.devices.copy()
    devices[0]["busy_ns"], devices[0]["copy_ns"] = busy_ns, copy_ns
    return Snapshot(made.header, devices, made.uuids, made.rows, made.names)


class Windows:
    """A process whose windows are followed as they end."""

    def __init__(self) -> None:
        self.deltas = CounterDeltas(state_of("k", 0, 0, 0, 0), 0)
        self.spans = TimedSpans(self.deltas, RowNames())

    def follow(self, after: Snapshot) -> TimedSpan | None:
        for _ in self.deltas.follow(after):
            pass
        return self.spans.take(lambda device: device + 3)


def test_what_work_covered_is_scaled_as_the_rows_of_its_windows() -> None:
    span = Windows().follow(
        state_of("k", 10, 1_000, 900, 90, on_ns=100, launches=10, numbered=80, written_ns=800)
    )
    assert span is not None
    ((kernel, recorded, alone),) = span.rows
    assert (kernel.gpu, recorded, alone) == (3, 10, True)
    assert (span.recorded_ns, span.span_ns, span.begun_ns) == (100, 800, 0)
    assert kernel.time.value_ns == span.time.value_ns == pytest.approx(8_000)
    (gpu,) = span.gpus
    assert gpu.gpu == 3
    assert (gpu.busy, gpu.copy) == pytest.approx((7_200, 720))


def test_what_work_covered_and_delays_wait_for_their_window_s_end() -> None:
    """A window is told when it is over: nothing of it is lost, and nothing told twice."""
    following = Windows()
    assert following.follow(
        state_of("k", 5, 500, 300, 30, delays=2, state=1, on_ns=50, launches=5, numbered=40,
                 written_ns=400, bad_times=1)
    ) is None  # fmt: skip
    span = following.follow(
        state_of("k", 10, 1_000, 900, 90, delays=4, on_ns=100, launches=10, numbered=80,
                 written_ns=800, bad_times=1)
    )  # fmt: skip
    assert span is not None
    assert span.lost == 1
    assert span.gpus[0].busy == pytest.approx(7_200)
    assert (span.rows[0].kernel.delay_ns, span.rows[0].kernel.launches) == (50, 80)
    again = following.follow(
        state_of("k", 10, 1_000, 900, 90, delays=4, on_ns=200, launches=10, numbered=80,
                 written_ns=1_600, bad_times=1)
    )  # fmt: skip
    assert again is None or (again.lost, again.gpus) == (0, ())


def test_what_no_library_writes_of_a_device_is_left_out() -> None:
    span = Windows().follow(
        state_of("k", 10, 1_000, 8, 1 << 60, on_ns=100, launches=10, numbered=80, written_ns=800)
    )
    assert span is not None
    assert span.gpus == ()


@pytest.mark.slow
def test_programs_are_found_with_what_their_library_says(tmp_path: Path) -> None:
    """Without an agent: out of /proc alone, and no stranger's memory of that name ends it."""
    stranger = FakeMemory(4096)
    try:
        with (
            program(tmp_path / "s.sock") as attached,
            program(tmp_path / "s.sock", "without") as bare,
        ):
            until(lambda: has_library("/proc", attached.pid) is True)
            found = {one.process.pid: one for one in gpu_programs().programs}
            timed, other = found[attached.pid], found[bare.pid]
            assert (timed.name, timed.attached, other.attached) == ("program", True, False)
            assert timed.state is not None
            assert timed.state.header["pid"] == attached.pid
            assert other.state is None
            child = int(attached.ask("fork-and-stay").split()[1])
            try:
                assert has_library("/proc", child)
                assert child not in {one.process.pid for one in gpu_programs().programs}
            finally:
                os.kill(child, signal.SIGKILL)
    finally:
        stranger.close()


def test_a_listener_leaves_the_path_of_who_came_after_it(tmp_path: Path) -> None:
    first = Listener(tmp_path / "s.sock")
    second = Listener(tmp_path / "s.sock")
    first.close()
    assert (tmp_path / "s.sock").is_socket()
    second.close()
    assert not (tmp_path / "s.sock").exists()
