"""A profile of a real process: GPU time from the library in it beside the calls that probes see."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.gpu_time.listener import Listener
from collectors.profiling.gpu_times import GpuStep, ProfiledTimes, _is_free
from collectors.records.gpu_time import TimingState
from tests.gpu_time_kit import Program, program
from tests.probes_kit import Stubs
from tests.profile_kit import ReadProfile, parse
from tests.wait_kit import until

REPOSITORY = Path(__file__).resolve().parents[3]


@contextmanager
def stepping(one: Program) -> Iterator[None]:
    """Steps in a loop."""
    ending = threading.Event()

    def work() -> None:
        while not ending.wait(0.02):
            one.ask("step 20")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Program]:
    stubs = Stubs.build(tmp_path)
    runtime = str(stubs.library("libcudart"))
    with program(tmp_path / "s.sock", source="profiled.c", FAKE_RUNTIME=runtime) as one:
        yield one


@pytest.mark.root
@pytest.mark.release
def test_profile_has_gpu_time_where_it_is_known_to_come_from(
    training: Program, tmp_path: Path
) -> None:
    out = tmp_path / "p.pb.gz"
    words = ["--pid", str(training.pid), "--out", str(out), "--seconds", "1.5"]
    with stepping(training):
        ran = subprocess.run(
            [sys.executable, "-m", "pointillist", "agent", "profile", *words, "--socket",
             str(tmp_path / "s.sock")],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
    assert "% of the time was recorded" in ran.stderr or "all of it was recorded" in ran.stderr
    assert not (tmp_path / "s.sock").exists()  # it took an agent's place for as long as it ran
    profile = ReadProfile(parse(gzip.decompress(out.read_bytes())))
    timed = {frames[0]: frames for frames, values, _ in profile.samples if values[2]}
    assert timed["gemm_kernel"][1] == "cudart.launch"
    assert len(timed["gemm_kernel"]) > 3
    # Launched from two places, and by a graph.
    assert len(timed["relu_kernel"]) == len(timed["norm_kernel"]) == 2
    assert timed["norm_kernel"][1].startswith("GPU 0 (01010101-")
    by_kernel = {frames[0]: values[2] for frames, values, _ in profile.samples if values[2]}
    assert by_kernel["gemm_kernel"] == pytest.approx(3 * by_kernel["relu_kernel"], rel=0.01)


def followed(one: Program, path: Path) -> Iterator[GpuStep]:
    """Steps of a profile while the program works."""
    times = ProfiledTimes(one.pid, path)
    times.start(boottime_ns())
    found: list[GpuStep] = []
    try:

        def more() -> bool:
            one.ask("kernels gemm 20 0 1000")
            step = times.poll(boottime_ns(), last=True)
            found.extend([step] if step and step.kernels else [])
            return len(found) >= 2

        until(more)
        yield from found
        assert times.state is TimingState.MEASURED
        assert 0 < times.recorded_ns <= times.spent_ns
    finally:
        times.close()


def test_a_profile_takes_an_agent_s_place_where_none_listens(tmp_path: Path) -> None:
    with program(tmp_path / "s.sock") as one:
        steps = list(followed(one, tmp_path / "s.sock"))
        assert {row.kernel.kernel for step in steps for row in step.kernels} == {"gemm"}
        for step in steps:
            (row,) = step.kernels
            assert row.alone
            assert step.begun_ns < step.ended_ns
        # The first one's time begins before recording did, launches of which nobody saw.
        (row,) = steps[1].kernels
        assert row.kernel.time.value_ns == pytest.approx(1000 * row.kernel.launches, rel=0.01)


def test_a_profile_leaves_an_agent_s_place_and_any_other_path_alone(tmp_path: Path) -> None:
    agent = Listener(tmp_path / "s.sock")
    inode = (tmp_path / "s.sock").stat().st_ino
    with program(tmp_path / "s.sock") as one:
        for path in (tmp_path / "s.sock", tmp_path / "elsewhere.sock"):
            times = ProfiledTimes(one.pid, path)
            times.start(boottime_ns())
            assert times._listener is None
            times.close()
        assert (tmp_path / "s.sock").stat().st_ino == inode
        assert not (tmp_path / "elsewhere.sock").exists()
    agent.close()


def test_a_path_is_free_only_where_nothing_else_lies(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    assert _is_free(path)
    path.write_text("a file")
    assert not _is_free(path)
    path.unlink()
    other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.bind(str(path))
    assert not _is_free(path)  # somebody's, of another kind
    other.close()
    path.unlink()
    Listener(path)._socket.close()
    assert _is_free(path)  # left behind


def test_a_process_without_the_library_is_said_to_have_none(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:  # a test before may have loaded it here
        times = ProfiledTimes(other.pid, tmp_path / "s.sock")
        times.start(boottime_ns())
        assert times.poll(boottime_ns(), last=True) is None
        assert times.state is TimingState.NO_LIBRARY
        times.close()
        other.kill()
