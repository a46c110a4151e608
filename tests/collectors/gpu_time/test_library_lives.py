"""What happens around the library: agents that die or lie, and what programs do to themselves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from collectors.gpu_time.listener import Listener, Reporter
from collectors.gpu_time.segment import RecordingState
from scripts.gpu_time.listening import OFF, ON, Listening, listening, sums
from tests.fake_library import EMULATED, built
from tests.gpu_time_kit import CUPTI, FAKES, Program, cupti_folder, program
from tests.wait_kit import until

pytestmark = pytest.mark.slow


@pytest.fixture
def agent() -> Iterator[Listening]:
    with listening() as found:
        found.plan(ON)
        yield found


@pytest.fixture
def recording(agent: Listening) -> Iterator[Program]:
    """A program all of whose work is recorded."""
    with program(agent.path) as found:
        agent.wait(found.pid, RecordingState.ON)
        yield found


def detached(one: Program) -> bool:
    return "finalize behind a call" in one.calls


def met(listener: Listener) -> Reporter:
    """Take the next process that reports."""
    found: list[Reporter] = []

    def taken() -> bool:
        found.extend(listener.accept())
        return bool(found)

    until(taken)
    return found[0]


def state(reporter: Reporter) -> int:
    return reporter.segment.read().header["state"]


@pytest.mark.live
def test_recording_ends_within_a_second_of_the_agent_and_begins_again_after_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gpu-time.sock"
    first = Listener(path)
    with program(path) as one:
        reporter = met(first)
        reporter.lease(ON, 60_000)
        until(lambda: state(reporter) == RecordingState.ON)
        reporter._connection.close()
        first.close()
        until(lambda: state(reporter) == RecordingState.OFF, patience_s=1)
        until(lambda: detached(one), patience_s=1)
        reporter.segment.close()
        second = Listener(path)
        begun_s = time.monotonic()
        again = met(second)
        again.lease(ON, 60_000)
        until(lambda: state(again) == RecordingState.ON)
        assert time.monotonic() - begun_s < 1
        again.close()
        second.close()
        assert one.end() == 0


@pytest.mark.live
def test_recording_ends_with_its_lease(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "gpu-time.sock")
    with program(tmp_path / "gpu-time.sock") as one:
        reporter = met(listener)
        reporter.lease(ON, 300)
        until(lambda: state(reporter) == RecordingState.ON)
        until(lambda: state(reporter) == RecordingState.OFF, patience_s=1)
        until(lambda: detached(one), patience_s=1)
        reporter.lease(ON, 300)
        until(lambda: state(reporter) == RecordingState.ON, patience_s=1)
        reporter.close()
    listener.close()


@pytest.mark.live
def test_recording_ends_with_its_lease_while_the_application_loads_a_library_for_long(
    tmp_path: Path,
) -> None:
    """Nothing that ends a window waits for the loader."""
    listener = Listener(tmp_path / "gpu-time.sock")
    slow = built(FAKES / "slow_library.c", "libslow.so")
    with program(tmp_path / "gpu-time.sock", FAKE_SLOW=str(slow), FAKE_SLOW_S="60") as one:
        reporter = met(listener)
        reporter.lease(ON, 1_000)
        until(lambda: state(reporter) == RecordingState.ON)
        one.ask("kernels gemm 5 0 10")
        assert one.ask("hold-loader") == "held"
        until(lambda: state(reporter) == RecordingState.OFF)
        until(lambda: detached(one), patience_s=1)
        reporter.close()
    listener.close()


@pytest.mark.live
def test_one_long_kernel_does_not_keep_cupti_in_for_ever(
    agent: Listening, recording: Program
) -> None:
    """It is waited for in the windows behind it, half as long in each."""
    recording.ask("kernels long 1 0 500000000")
    for windows in range(1, 11):
        agent.plan(OFF)
        agent.wait(recording.pid, RecordingState.OFF)
        begun_s = time.monotonic()
        until(partial(has_left, recording, windows))
        left_s = time.monotonic() - begun_s
        agent.plan(ON)
        agent.wait(recording.pid, RecordingState.ON)
    assert left_s < 0.5


def has_left(one: Program, times: int) -> bool:
    return one.calls.count("finalize behind a call") == times


@pytest.mark.parametrize("how", ["fork", "fork-past"])
def test_a_child_reports_nothing_and_ends_at_once(
    agent: Listening, recording: Program, how: str
) -> None:
    said, code, milliseconds = recording.ask(how).split()
    assert (said, code) == ("child", "3")
    assert int(milliseconds) < 300
    recording.ask("kernels gemm 5 0 10")
    assert agent.settled(recording.pid).header["records"] == 5
    assert set(agent._reporters) == {recording.pid}
    assert recording.end() == 0


def test_a_child_does_not_keep_its_parent_s_connection(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "gpu-time.sock")
    with program(tmp_path / "gpu-time.sock") as one:
        reporter = met(listener)
        child = int(one.ask("fork-and-stay").split()[1])
        one.kill()
        try:
            until(reporter.gone)
        finally:
            os.kill(child, signal.SIGKILL)
        reporter.close()
    listener.close()


@pytest.mark.skipif(EMULATED, reason="qemu-user executes programs of its own machine alone")
def test_a_program_that_executes_itself_reports_anew(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "gpu-time.sock")
    with program(tmp_path / "gpu-time.sock") as one:
        first = met(listener)
        assert one.ask("exec") == "ready"
        until(first.gone)
        second = met(listener)
        assert second.pid == first.pid == one.pid
        second.lease(ON, 10_000)
        until(lambda: state(second) == RecordingState.ON)
        assert one.end() == 0
        first.close()
        second.close()
    listener.close()


def test_descriptors_that_a_program_opens_at_the_same_numbers_are_its_own(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "gpu-time.sock")
    with program(tmp_path / "gpu-time.sock") as one:
        first = met(listener)
        first.lease(ON, 60_000)
        until(lambda: state(first) == RecordingState.ON)
        one.ask("kernels gemm 5 0 10")
        until(lambda: first.segment.read().header["records"] == 5)
        assert one.ask("close-all") == "closed"
        second = met(listener)
        second.lease(ON, 60_000)
        until(lambda: state(second) == RecordingState.ON)
        one.ask("kernels gemm 5 0 10")
        until(lambda: second.segment.read().header["records"] == 10)
        assert sums(second.segment.read())[0, "gemm"].launches == 10
        assert listener.refused == {}
        assert (one.ask("whole"), one.end()) == ("whole 64", 0)
        first.close()
        second.close()
    listener.close()


def test_a_program_that_closes_everything_while_the_library_waits_is_left_alone(
    tmp_path: Path,
) -> None:
    listener = Listener(tmp_path / "gpu-time.sock")
    with program(tmp_path / "gpu-time.sock") as one:
        reporter = met(listener)
        reporter.lease(OFF, 60_000)
        time.sleep(0.2)  # it waits for another
        one.ask("close-all")
        time.sleep(0.8)
        assert (one.ask("whole"), one.end()) == ("whole 64", 0)
        reporter.close()
    listener.close()


@pytest.mark.live
@pytest.mark.parametrize("listens", [True, False])
def test_a_program_ends_as_fast_as_without_the_library(agent: Listening, listens: bool) -> None:
    agent.plan(OFF)
    path = agent.path if listens else agent.path.with_name("nobody.sock")
    for words in ((), ("not injected",)):
        with program(path, *words) as one:
            if listens and not words:
                agent.wait(one.pid)
            begun_s = time.monotonic()
            assert one.end() == 0
            assert time.monotonic() - begun_s < 0.2


def test_the_last_records_are_read_when_a_program_ends_in_a_window(
    agent: Listening, recording: Program
) -> None:
    recording.ask("kernels gemm 100 0 10")
    recording.tell("exit 5")
    assert recording.end() == 5
    header = agent.look(recording.pid).header
    assert (header["records"], header["state"], header["detaches"]) == (100, RecordingState.OFF, 1)


def test_a_program_that_ends_while_cupti_is_first_attached_waits_for_it(agent: Listening) -> None:
    """CUPTI adds handlers of the process's end as it is attached, and they run first."""
    agent.plan(ON)
    with program(agent.path, FAKE_CUPTI_SUBSCRIBE_US="300000") as one:
        until(lambda: "subscribing" in one.calls)
        one.tell("exit 5")
        assert one.end() == 5


def test_a_program_that_ends_before_anything_happened_ends_as_it_was_told(tmp_path: Path) -> None:
    for _ in range(20):
        with program(tmp_path / "nobody.sock") as one:
            one.tell("exit 5")
            assert one.end() == 5


def test_loading_the_library_again_after_it_was_closed_changes_nothing(
    agent: Listening, recording: Program
) -> None:
    assert [recording.ask("inject") for _ in range(3)] == ["injected"] * 3
    recording.ask("kernels gemm 5 0 10")
    assert agent.settled(recording.pid).header["records"] == 5


def test_cupti_is_found_beside_the_runtime_with_nothing_locked(
    agent: Listening, tmp_path: Path
) -> None:
    """Other threads load libraries meanwhile: with both locks in another order all would stand."""
    folder = tmp_path / "nvidia"
    folder.mkdir()
    cupti = built(FAKES / "fake_cupti.c", "libcupti.so.13", CUPTI)
    runtime = built(FAKES / "slow_library.c", "libcudart.so.13")
    for library in (cupti, runtime):
        (folder / library.name).symlink_to(library)
    with program(
        agent.path,
        POINTILLIST_CUPTI="",
        WITHOUT_CUPTI="1",
        LD_PRELOAD=str(folder / runtime.name),
        FAKE_CUPTI_WALKS="1",
    ) as one:
        agent.wait(one.pid)
        assert (one.said, one.end(), one.errors) == ("ready", 0, "")


def test_another_profiler_that_comes_in_a_window_is_told_so_and_works_behind_it(
    agent: Listening, recording: Program
) -> None:
    assert recording.ask("occupy") == "subscribed 39"
    recording.ask("kernels gemm 5 0 10")
    agent.plan(OFF)
    until(lambda: detached(recording))
    assert recording.ask("occupy") == "subscribed 0"
    agent.plan(ON)
    agent.wait(recording.pid, RecordingState.OCCUPIED)
    header = agent.look(recording.pid).header
    assert (header["records"], header["occupied"], header["windows"]) == (5, 1, 1)
    assert recording.end() == 0


def test_a_program_without_cupti_goes_on(agent: Listening) -> None:
    with program(agent.path, POINTILLIST_CUPTI="/nowhere/libcupti.so", WITHOUT_CUPTI="1") as one:
        time.sleep(0.3)
        assert set(agent._reporters) == set()
        assert one.end() == 0


def test_a_program_goes_on_beside_the_real_cupti_without_a_device(agent: Listening) -> None:
    (real,) = (cupti_folder() / "lib").glob("libcupti.so.*")
    with program(agent.path, POINTILLIST_CUPTI=str(real), WITHOUT_CUPTI="1") as one:
        time.sleep(0.5)
        assert (one.said, one.end()) == ("ready", 0)
