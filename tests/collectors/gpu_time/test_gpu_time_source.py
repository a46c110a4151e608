"""The collector: what it says of processes that report, and whom it lets go."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.devices.devices_source import GpuUsers
from collectors.gpu_time.gpu_time_source import GpuTimeSection, GpuTimeSource
from collectors.gpu_time.segment import HEADER, RecordingState, RowKind
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from tests.followed_kit import FakeLibrary, Followed
from tests.gpu_time_kit import program
from tests.wait_kit import until

S = 1_000_000_000
OTHER_PROCESS = 1


def test_activity_is_what_a_process_launched_since_it_was_taken_in(
    followed: Followed, library: FakeLibrary
) -> None:
    library.launched(3, 30)
    before_ns = boottime_ns()
    followed.drain()
    (one,) = followed.activity
    assert (one.gpu, one.kernel, one.family, one.count, one.gpu_time_ns) == (
        0, "gemm", "gemm", 3, 30,
    )  # fmt: skip
    assert 0 < one.boottime_ns < before_ns
    assert one.boottime_ns + one.span_ns <= boottime_ns()
    library.launched(5, 60)
    followed.drain()
    assert [(one.count, one.gpu_time_ns) for one in followed.activity] == [(3, 30), (2, 30)]
    assert followed.activity[1].boottime_ns == one.boottime_ns + one.span_ns


def test_what_a_process_did_for_another_connection_is_not_told_again(followed: Followed) -> None:
    library = FakeLibrary(followed.path)
    library.launched(1_000_000, 5 * S)
    library.lease()
    followed.drain()
    library.launched(1_000_002, 5 * S + 7)
    followed.drain()
    assert [(one.count, one.gpu_time_ns) for one in followed.activity] == [(2, 7)]
    library.close()


def test_a_process_that_connects_anew_takes_the_place_of_its_old_connection(
    followed: Followed, library: FakeLibrary
) -> None:
    again = FakeLibrary(followed.path)
    again.lease()
    library.launched(2, 9)
    followed.drain()
    assert (followed.reporting(), sum(one.count for one in followed.activity)) == (1, 2)
    again.close()


def test_views_are_told_of_a_process_s_gpu_time_with_its_interval(
    followed: Followed, library: FakeLibrary
) -> None:
    """Windows of 0.1 s of each second, their launches a tenth of all."""
    begun_ns = boottime_ns()
    for second in range(1, 10):
        gemm = {"kind": RowKind.KERNEL, "count": 100 * second, "total_ns": 1_000 * second}
        relu = {"kind": RowKind.KERNEL, "count": 30 * second + second % 2, "total_ns": 90 * second,
                "device": 1}  # fmt: skip
        copy = {"kind": RowKind.COPY, "count": 5 * second, "total_ns": 50 * second}
        library.memory.rows(("gemm", gemm), ("relu_kernel", relu), ("copy HtoD", copy))
        launches = 130 * second + second % 2
        library.head(
            rows_used=4, names_used=28, launches=launches, numbered=10 * launches, windows=second,
            on_ns=second * S // 10, written_ns=begun_ns + second * S,
        )  # fmt: skip
        followed.drain()
    first, told = followed.times[0], followed.times[-1]
    assert (first.time.error_ns, first.span_ns > 0.9 * S) == (None, True)
    assert (told.process.pid, told.span_ns) == (os.getpid(), S)
    assert told.recorded_ns == S // 10
    assert [(one.gpu, one.kernel) for one in told.kernels] == [
        (0, "gemm"), (1, "relu_kernel"), (0, "Memcpy HtoD"),
    ]  # fmt: skip
    assert [one.time.value_ns for one in told.kernels] == pytest.approx([10_000, 900, 500])
    assert sum(one.launches for one in told.kernels[:2]) == pytest.approx(1310)
    families = {family: time.value_ns for family, time in told.families}
    assert families["memcpy"] == pytest.approx(500)
    assert told.time.value_ns == pytest.approx(11_400)
    times = [
        told.time, *(of.time for of in told.kernels), *(of.time for of in told.families),
    ]  # fmt: skip
    assert all(0 < (time.error_ns or 0) < time.value_ns for time in times)
    scaled = sum(1e6 * (one.gpu_time_ns or 0) / one.sampling_rate_millionths
                 for one in followed.activity)  # fmt: skip
    assert scaled == pytest.approx(sum(one.time.value_ns for one in followed.times), rel=1e-3)


def test_applications_are_told_by_all_launches(
    followed: Followed, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth was recorded."""
    seen: list[int] = []
    monkeypatch.setattr(
        followed.source._classifier, "observe", lambda *given: seen.append(given[3])
    )
    library.launched(100, 1_000)
    library.head(numbered=1_000, on_ns=S, written_ns=boottime_ns() + 10 * S)
    followed.drain()
    assert seen == [1_000]


def test_a_process_that_has_gone_is_read_a_last_time(
    followed: Followed, library: FakeLibrary
) -> None:
    followed.drain()
    library.launched(4, 40)
    library.connection.close()
    until(lambda: all(one.gone for one in followed.source._processes))
    followed.drain()
    assert [one.count for one in followed.activity] == [4]
    assert (followed.reporting(), followed.users.timed) == (0, frozenset())


def test_devices_are_found_by_their_uuid(followed: Followed, library: FakeLibrary) -> None:
    uuid = "01020304-0506-0708-090a-0b0c0d0e0f10"
    followed.users.name({f"GPU-{uuid}": 1})
    library.launched(1)
    assert HEADER.fields is not None
    place = HEADER.fields["uuid"][1]
    library.memory.memory[place : place + 16] = bytes(range(1, 17))
    followed.drain()
    assert [one.gpu for one in followed.activity] == [1]


def covered(followed: Followed) -> set[int]:
    """GPUs that are covered by the next drain alone."""
    followed.coverage.clear()
    followed.drain()
    return {one.gpu for one in followed.coverage}


def test_a_gpu_is_covered_once_all_its_processes_were_measured_for_the_whole_time(
    followed: Followed, library: FakeLibrary
) -> None:
    users, own = followed.users, os.getpid()
    users.see({0: [own], 1: [own, OTHER_PROCESS]}, boottime_ns())
    assert covered(followed) == set()  # since when?
    assert covered(followed) == set()  # nothing was recorded yet
    library.launched(1)
    assert covered(followed) == {0}
    (one,) = followed.coverage
    assert one.boottime_ns + one.span_ns <= boottime_ns()
    users.see({0: [own, OTHER_PROCESS]}, boottime_ns())
    assert covered(followed) == set()
    users.see({0: []}, boottime_ns())
    assert covered(followed) == set()


def test_a_gpu_is_not_covered_by_a_process_that_came_meanwhile(followed: Followed) -> None:
    followed.users.see({0: [os.getpid()]}, boottime_ns())
    followed.drain()
    library = FakeLibrary(followed.path)
    library.lease()
    library.launched(1)
    assert covered(followed) == set()
    assert covered(followed) == {0}
    library.close()


@pytest.mark.parametrize("state", [RecordingState.REFUSED, RecordingState.OCCUPIED, 77])
def test_a_process_that_cannot_be_recorded_is_left_to_other_sources(
    followed: Followed, library: FakeLibrary, state: int
) -> None:
    followed.users.see({0: [os.getpid()]}, boottime_ns())
    library.launched(1)
    followed.drain()
    assert (covered(followed), len(followed.users.timed)) == ({0}, 1)
    library.head(state=state)
    assert (covered(followed), followed.users.timed) == (set(), frozenset())
    library.head(state=RecordingState.ON)
    assert (covered(followed), len(followed.users.timed)) == ({0}, 1)


def test_processes_that_are_timed_are_told_to_the_probes_by_the_same_key(
    followed: Followed, library: FakeLibrary
) -> None:
    followed.drain()
    assert followed.users.timed == frozenset()  # nothing is recorded yet: the probes count
    library.launched(1)
    followed.drain()
    (key,) = followed.users.timed
    assert key.pid == os.getpid()
    assert key.start_ns % 10_000_000 == 0  # whole ticks, as the probes' keys


def test_a_process_that_writes_nonsense_is_let_go(followed: Followed, library: FakeLibrary) -> None:
    library.head(rows_used=5000)
    followed.drain()
    followed.drain()
    assert followed.reporting() == 0


def test_a_process_met_while_writing_is_read_the_next_time(
    followed: Followed, library: FakeLibrary
) -> None:
    library.launched(3)
    library.head(generation=5)
    followed.drain()
    assert (followed.activity, followed.reporting()) == ([], 1)
    library.head(generation=6)
    followed.drain()
    assert [one.count for one in followed.activity] == [3]
    library.head(generation=7)
    for _ in range(20):
        followed.drain()
    assert followed.reporting() == 0


def test_a_process_whose_child_keeps_the_connection_is_let_go(
    followed: Followed, library: FakeLibrary
) -> None:
    """Its key is no living process's."""
    (process,) = followed.source._processes
    process.key = ProcessKey(process.key.pid, process.key.start_ns - S)
    library.launched(3)
    followed.drain()
    assert ([one.count for one in followed.activity], followed.reporting()) == ([3], 0)


def test_names_of_strangers_take_bounded_memory(
    followed: Followed, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.gpu_time.segment._MOST_NAMES", 10)
    for turn in range(4):
        rows = {"kind": RowKind.KERNEL, "count": turn + 1}
        library.memory.rows(*((f"{turn}-{name}", rows) for name in range(8)))
        library.head(rows_used=9, names_used=64)
        followed.drain()
        assert len(followed.source._names._named) <= 10
    assert len(followed.activity) == 32


def open_things() -> tuple[int, set[str]]:
    threads = {thread.name for thread in threading.enumerate()}
    return len(os.listdir("/proc/self/fd")), threads  # noqa: PTH208


def test_stop_leaves_no_thread_socket_or_descriptor(tmp_path: Path) -> None:
    before = open_things()
    followed = Followed(tmp_path / "s.sock")
    library = FakeLibrary(followed.path)
    library.lease()
    library.launched(1)
    followed.drain()
    followed.source.stop()
    with pytest.raises(SourceUnavailable):
        followed.drain()
    while library.connection.recv(64):
        pass
    library.close()
    assert (open_things(), followed.path.exists()) == (before, False)
    assert followed.users.timed == frozenset()


@pytest.mark.parametrize("name", ["nowhere/s.sock", "s" * 200])
def test_a_socket_that_cannot_be_made_is_said_in_a_line(tmp_path: Path, name: str) -> None:
    source = GpuTimeSource(GpuTimeSection(True, tmp_path / name), 1, GpuUsers())
    with pytest.raises(SourceUnavailable, match=r"cannot listen at .*: (?!None)"):
        source.start()


def test_a_flood_of_connections_leaves_leases_alive(
    followed: Followed, library: FakeLibrary
) -> None:
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(60)]
    for one in crowd:
        one.connect(str(followed.path))
    begun_s = time.monotonic()
    for _ in range(4):
        library.lease()
    assert time.monotonic() - begun_s < 3
    followed.drain()
    assert followed.reporting() == 1
    for one in crowd:
        one.close()


@pytest.mark.live
@pytest.mark.slow
def test_a_real_program_s_launches_are_counted_exactly(followed: Followed) -> None:
    followed.users.name({"GPU-01010101-0101-0101-0101-010101010101": 1})
    with program(followed.path) as one:
        until(lambda: followed.reporting() == 1)
        followed.users.see({1: [one.pid]}, boottime_ns())
        begun_s, launched = time.monotonic(), 0
        # It ends in a window, so that no launch comes after the last.
        while time.monotonic() - begun_s < 3.5 or not followed.recording():
            assert time.monotonic() - begun_s < 30
            one.ask("kernels gemm 20 0 1000")
            launched += 20
            time.sleep(0.01)
            if launched % 400 == 0:
                followed.drain()
        one.ask("kernels gemm 20 0 1000")
        launched += 20
        (process,) = followed.source._processes
        header = process.deltas.before.header
        assert one.end() == 0
        until(lambda: process.gone)
        followed.drain()
    last = process.deltas.before.header
    assert header["windows"] >= 1
    assert last["bad_times"] == last["records_lost_cupti"] == 0
    assert followed.launches() == pytest.approx(last["numbered"], rel=1e-3)
    assert launched - last["numbered"] < launched / 2  # those before the first window
    assert {(a.gpu, a.kernel) for a in followed.activity} == {(1, "gemm")}
    # The first window stands for a time whose launches nobody numbered.
    means_ns = [(a.gpu_time_ns or 0) / a.count for a in followed.activity[1:]]
    assert means_ns == pytest.approx([1000] * len(means_ns), rel=0.01)
    assert {one.gpu for one in followed.coverage} == {1}
