"""What tests leave open fails their session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.leftovers import GRACE

pytestmark = pytest.mark.slow

SLOPPY = """
import os, subprocess, threading, time
from confluent_kafka import Producer
def test_leaves_things_open():
    global producer, child
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    child = subprocess.Popen(["sleep", "5"])
    if os.fork() == 0:
        os._exit(0)
    threading.Thread(target=time.sleep, args=(5,), name="sloppy").start()
    os.chmod(os.environ["TMPDIR"], 0o755)
"""
TIDY = """
import threading
def test_leaves_nothing_open():
    threading.Thread(target=threading.Event().wait, args=(0.1,)).start()
"""


def session(folder: Path, source: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one test with the plugin."""
    (folder / "test_one.py").write_text(source)
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.leftovers", "-c", "/dev/null")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={folder}", str(folder)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


def test_session_that_leaves_things_open_fails_and_names_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    done = session(tmp_path, SLOPPY, TMPDIR=str(shared), **{GRACE: "0.5"})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    lines = [line for line in done.stdout.splitlines() if line.startswith("LEFT OPEN")]
    assert lines[0] == "LEFT OPEN: thread sloppy"
    assert lines[1].startswith("LEFT OPEN: a client of librdkafka")
    assert lines.pop() == f"LEFT OPEN: {shared} with mode 755, which was 1777"
    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert {line.split(maxsplit=4)[-1] for line in lines[2:]} == {
        "sleep 5",
        "which ended and nobody waited for",
    }
    assert len(lines) == 4


def test_session_that_closes_everything_passes(tmp_path: Path) -> None:
    done = session(tmp_path, TIDY)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "LEFT OPEN" not in done.stdout
