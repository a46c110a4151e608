"""The watchdog of a test run: what stands still is named, dumped and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts.run_tests import counted
from scripts.watchdog import (
    LEFT_BEHIND,
    MOST_STRETCH,
    STOOD_STILL,
    LoadClock,
    python_stacks,
    stalled,
    stretch,
)
from tests.heartbeat import FOLDER, Beat, Outcome, read_beats

pytestmark = pytest.mark.slow

ME = os.getpid()
NOBODY = 1 << 30
HANG_S = 120
STALL_S = 5
"""More than pytest takes to start; on a busy machine the watchdog waits longer."""

IN_C = """
import ctypes, subprocess
def test_stands_still():
    subprocess.Popen(["sleep", "1017"], start_new_session=True)
    ctypes.PyDLL(None).sleep(1000)
"""
OTHERS = """
import pytest, subprocess, sys
tries = []
@pytest.fixture
def broken(): raise OSError("no such disk")
def test_fails(): assert 1 == 2, "one is not two"
def test_errs(broken): pass
@pytest.mark.flaky(reruns=1)
def test_passes_at_last():
    tries.append(1)
    assert len(tries) == 2
def test_runs_a_failing_one(tmp_path):
    (tmp_path / "test_inner.py").write_text("def test_inner(): assert False")
    done = subprocess.run([sys.executable, "-m", "pytest", "-c", "/dev/null", tmp_path])
    assert done.returncode == 1
"""
NAMED = [
    "failed: test_others.py::test_fails: AssertionError: one is not two",
    "error: test_others.py::test_errs: OSError: no such disk",
    "retried: test_others.py::test_passes_at_last: assert 1 == 2",
]
BEATING = """
import ctypes, pathlib, sys
from tests.heartbeat import _Heart
_Heart(pathlib.Path(sys.argv[1]))
print("beats", flush=True)
ctypes.PyDLL(None).sleep(1000)
"""


def watched(*command: str, **limits: float) -> subprocess.CompletedProcess[str]:
    """Run a command under the watchdog."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
    return subprocess.run(
        [sys.executable, "-m", "scripts.watchdog", *options, "--", *command],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


def running(*command: str) -> bool:
    """Tell whether somebody runs this very command."""
    return any(one.info["cmdline"] == list(command) for one in psutil.process_iter(["cmdline"]))


def test_beat_outlives_its_file(tmp_path: Path) -> None:
    beats = [Beat(7, 12.5, "tests/a.py::test_b[x y]"), Beat(8, 13.0, "")]
    for beat in beats:
        (tmp_path / str(beat.pid)).write_bytes(beat.line())
    (tmp_path / "7.stacks").touch()
    (tmp_path / "9").touch()
    assert list(read_beats(tmp_path)) == beats


@pytest.mark.parametrize(
    ("beats", "told"),
    [
        ([Beat(ME, 0.0, "a::b")], "a::b"),
        ([Beat(ME, 95.0, "a::b")], None),
        ([Beat(ME, 0.0, "a::b"), Beat(ME, 99.0, "a::c")], "a::b"),
        ([Beat(ME, 0.0, ""), Beat(ME, 99.0, "a::c")], None),
        ([Beat(NOBODY, 0.0, "a::b"), Beat(ME, 99.0, "")], None),
        ([Beat(NOBODY, 0.0, "a::b"), Beat(ME, 1.0, "")], "the run, between tests,"),
        ([Beat(ME, 1.0, "")], "the run, between tests,"),
        ([], "the run, between tests,"),
    ],
)
def test_watchdog_names_what_stands_still(beats: list[Beat], told: str | None) -> None:
    assert stalled(beats, lambda moment_s: 100.0 - moment_s, 0.0, 10.0) == told


def test_time_of_a_loaded_machine_counts_for_less() -> None:
    clock = LoadClock(1000.0)
    for now_s, stretched in ((1010.0, 1.0), (1040.0, 3.0), (1050.0, 1.0)):
        clock.look(now_s, stretched)
    assert clock.since(1000.0) == pytest.approx(30.0)
    assert clock.since(1040.0) == pytest.approx(10.0)
    assert clock.since(1050.0) == 0.0
    assert clock.mean_stretch() == pytest.approx(50 / 30)


def test_run_is_given_what_the_kernel_says_of_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    assert 1.0 <= stretch() <= MOST_STRETCH
    for load, expected in ((0.2, 1.0), (2.0, 2.0), (60.0, MOST_STRETCH)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load * cores, 0.0, 0.0))
        assert stretch() == expected


def test_watchdog_ends_a_test_that_holds_the_interpreter_in_c_and_names_what_had_failed(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_in_c.py").write_text(IN_C)
    (tmp_path / "test_others.py").write_text(OTHERS)
    done = watched(
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist.plugin",
        "-p", "pytest_rerunfailures", "-n", "2", "--dist", "loadfile",
        "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path), stall_s=STALL_S,
    )  # fmt: skip
    assert done.returncode == STOOD_STILL
    *_, first, second, third, last = done.stderr.splitlines()
    assert last == f"watchdog: test_in_c.py::test_stands_still stood still for {STALL_S} s"
    assert [first, second, third] == NAMED
    assert "test_stands_still (test_in_c.py:5)" in done.stderr
    assert "nanosleep" in done.stderr
    assert "sleep 1017" in done.stderr
    assert not running("sleep", "1017")


def test_run_counts_what_ended_before_it_was_ended() -> None:
    kinds = ["passed", "rerun", "passed", "error", "failed", "skipped", "xfailed"]
    counts = {"tests": 5, "skipped": 1, "failed": 2, "retried": 1}
    assert counted([Outcome(kind, "a::b") for kind in kinds]) == counts


def test_watchdog_that_is_ended_itself_names_what_had_failed_and_leaves_nothing() -> None:
    told = """'["failed", "a::b", "one is not two"]\\n["fail'"""
    end = "kill -TERM $PPID"  # as soon as it can, the command may be less than begun
    done = watched("sh", "-c", f'printf %b {told} >"${FOLDER}/1.outcomes"; {end}; sleep 1019')
    assert done.stderr == "failed: a::b: one is not two\n"
    assert done.returncode == 128 + signal.SIGTERM
    assert not running("sleep", "1019")


def test_stacks_come_from_the_process_itself_where_nobody_can_look_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BEATING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "beats\n"
            time.sleep(1)  # on to the next line
            monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # no py-spy beside it
            assert 'File "<string>", line 6' in python_stacks(child.pid, tmp_path)
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("exit 7", 7, ""),
        ("sleep 1018", STOOD_STILL, "the run took longer than 1 s, in no test"),
        ("setsid sleep 1018 & sleep 0.5", LEFT_BEHIND, "watchdog: left behind: "),
    ],
)
def test_watchdog_tells_how_the_run_ended(script: str, code: int, told: str) -> None:
    done = watched("sh", "-c", script, run_s=1 if "took" in told else HANG_S)
    assert done.returncode == code
    assert told in done.stderr
    assert not running("sleep", "1018")
