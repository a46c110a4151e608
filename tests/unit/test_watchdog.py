"""The watchdog of a test run: what stands still is named, dumped and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts.watchdog import LEFT_BEHIND, STOOD_STILL, python_stacks, stalled
from tests.heartbeat import Beat, read_beats

pytestmark = pytest.mark.slow

ME = os.getpid()
NOBODY = 1 << 30
HANG_S = 120
STALL_S = 8
"""More than pytest takes to start on a busy machine."""

IN_C = """
import ctypes, subprocess
def test_stands_still():
    subprocess.Popen(["sleep", "1017"], start_new_session=True)
    ctypes.PyDLL(None).sleep(1000)
"""
FINE = """
import time
def test_first(): time.sleep(0.1)
def test_second(): time.sleep(0.1)
"""
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
    assert stalled(beats, 100.0, 0.0, 10.0) == told


def test_watchdog_ends_a_test_that_holds_the_interpreter_in_c(tmp_path: Path) -> None:
    (tmp_path / "test_in_c.py").write_text(IN_C)
    (tmp_path / "test_fine.py").write_text(FINE)
    pytest_of = (
        f"{sys.executable} -m pytest -q -p no:cacheprovider -c /dev/null --rootdir {tmp_path}"
    )
    both = f"{pytest_of} {tmp_path}/test_fine.py & {pytest_of} {tmp_path}/test_in_c.py; wait"
    done = watched("sh", "-c", both, stall_s=STALL_S)
    assert done.returncode == STOOD_STILL
    last = done.stderr.splitlines()[-1]
    assert last == f"watchdog: test_in_c.py::test_stands_still stood still for {STALL_S} s"
    assert "test_stands_still (test_in_c.py:5)" in done.stderr
    assert "nanosleep" in done.stderr
    assert "sleep 1017" in done.stderr
    assert not running("sleep", "1017")


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
