"""What the source tells this host's views of each process: estimates, states, and who is silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.gpu_time.found_programs import gpu_programs, has_library
from collectors.gpu_time.listener import Listener
from collectors.gpu_time.process_times import Progress, TimeScale, row_extras, timed_gpus
from collectors.gpu_time.recorded_work import Growth
from collectors.gpu_time.segment import RecordingState, RowKind, Snapshot
from collectors.records.gpu_time import GpuTimes, TimingState
from tests.gpu_time.test_gpu_time_source import FakeLibrary, Followed
from tests.gpu_time_kit import program, until
from tests.segment_kit import FakeMemory, snapshot


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    found = Followed(tmp_path / "s.sock")
    yield found
    found.source.stop()


@pytest.fixture
def library(followed: Followed) -> Iterator[FakeLibrary]:
    found = FakeLibrary(followed.path)
    found.lease()
    yield found
    found.close()


def told(followed: Followed) -> GpuTimes:
    """What one drain says."""
    (times,) = (one for one in followed.source.drain(boottime_ns()) if isinstance(one, GpuTimes))
    return times


def test_a_process_is_told_with_its_kernels_and_what_they_stand_for(
    followed: Followed, library: FakeLibrary
) -> None:
    assert [process.state for process in told(followed).processes] == [TimingState.STARTING]
    library.launched(3, 30)
    library.head(numbered=300, cupti_version=130_000, written_ns=boottime_ns(), bad_times=2)
    times = told(followed)
    (process,) = times.processes
    (kernel,) = process.kernels
    assert (process.process.pid, process.state, process.cupti) == (
        os.getpid(), TimingState.MEASURED, 130_000,
    )  # fmt: skip
    assert (kernel.kernel, kernel.family) == ("gemm", "gemm")
    assert kernel.launches == pytest.approx(300)
    assert kernel.time_ns == pytest.approx(3_000)
    assert (process.lost, process.recorded_ns) == (2, 3)
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


def test_what_work_covered_is_scaled_as_its_rows_were_though_it_is_written_later() -> None:
    none = state_of("k", 0, 0, 0, 0, on_ns=0)
    rows_first = state_of("k", 10, 1_000, 0, 0, on_ns=100, numbered=80, launches=10, written_ns=500)
    then_busy = state_of("k", 10, 1_000, 900, 90, on_ns=200, numbered=80, launches=10,
                         written_ns=900)  # fmt: skip
    growth, scale, found = Growth(none, 0), TimeScale(), []
    for after in (rows_first, then_busy):
        before, since_ns = growth.before, growth.since_ns
        scale.add(list(growth.follow(after)))
        progress = Progress(before, after, since_ns, growth.since_ns)
        found.append(timed_gpus(progress, scale, lambda device: device + 3))
    assert found[0] == ()
    ((gpu,),) = found[1:]
    assert gpu.gpu == 3
    assert gpu.busy == pytest.approx(7_200)
    assert gpu.copy == pytest.approx(720)


def test_what_no_library_writes_of_a_device_is_left_out() -> None:
    before, after = state_of("k", 0, 0, 9, 9), state_of("k", 0, 0, 8, 1 << 60)
    progress = Progress(before, after, 0, 0)
    assert timed_gpus(progress, TimeScale(), lambda device: device) == ()


def test_launch_delays_are_means_of_those_that_were_known() -> None:
    before, after = state_of("k", 1, 9, 0, 0), state_of("k", 5, 90, 0, 0, delays=4)
    (extras,) = row_extras(before, after).values()
    assert (extras.mean_delay_ns, extras.bytes) == (50, 0)
    assert row_extras(after, after) == {}


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
    finally:
        stranger.close()


def test_a_listener_leaves_the_path_of_who_came_after_it(tmp_path: Path) -> None:
    first = Listener(tmp_path / "s.sock")
    second = Listener(tmp_path / "s.sock")
    first.close()
    assert (tmp_path / "s.sock").is_socket()
    second.close()
    assert not (tmp_path / "s.sock").exists()
