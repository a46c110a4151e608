"""A plugin of pytest: what tests leave open at the end of the session fails it.

Threads that Python would wait for, clients of Kafka, child processes, and another mode of a folder
that everybody on this machine shares, which is put back. Named in `pytest_plugins`
of the conftest, or by `-p tests.leftovers`; workers of pytest-xdist report to the first process.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

GRACE: Final = "POINTILLIST_LEFTOVERS_GRACE_S"
"""Names another grace than `_GRACE_S`, for tests of this plugin."""
_GRACE_S: Final = 15.0
"""For what is ending: a pool's threads, a process that was told to stop."""
_KEY: Final = "leftovers"
_NATIVE: Final = "rdk:main"
"""librdkafka's one such thread for each client, which Python does not see."""
_CLIENT: Final = "kafka-io-"
_MULTIPROCESSING: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""They end with the process whose they are."""

_SHARED: Final = {
    path: path.stat().st_mode & 0o7777
    for path in map(Path, ("/", "/dev", "/dev/shm", "/var/tmp", tempfile.gettempdir()))
    if path.is_dir()
}
"""Modes as the session finds them: without its own other users can make no semaphore, say."""

_found: list[str] = []
said: Final[dict[str, Sequence[str]]] = {}


def leftovers() -> Iterator[str]:
    for thread in threading.enumerate():
        ours = thread is threading.main_thread() or type(thread) is threading._DummyThread
        if not ours and (not thread.daemon or thread.name.startswith(_CLIENT)):
            yield f"thread {thread.name}"
    for task in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):
            if task.read_text().strip() == _NATIVE:
                yield f"a client of librdkafka (thread {task.parent.name})"
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                yield f"process {child.pid}, which ended and nobody waited for"
                continue
            command = " ".join(child.cmdline())
            if not any(name in command for name in _MULTIPROCESSING):
                yield f"process {child.pid} {command}"
    for path, mode in _SHARED.items():
        if (now := path.stat().st_mode & 0o7777) != mode:
            yield f"{path} with mode {now:o}, which was {mode:o}"


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Look when every fixture has ended."""
    yield
    gc.collect()  # clients that only a kept traceback still holds
    deadline_s = time.monotonic() + float(os.environ.get(GRACE, _GRACE_S))
    while (open_now := list(leftovers())) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    for path, mode in _SHARED.items():
        if path.stat().st_mode & 0o7777 != mode:
            with suppress(OSError):  # not ours to put back
                path.chmod(mode)
    worker = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker[_KEY] = open_now
        return
    _found.extend(open_now)
    if _found and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _found.extend(getattr(node, "workeroutput", {}).get(_KEY, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    say(terminalreporter, "LEFT OPEN", _found)


def say(terminal: pytest.TerminalReporter, kind: str, lines: Sequence[str]) -> None:
    """Print what fails a session besides its tests, and keep it for who sums up the run."""
    said[kind] = lines
    for line in lines:
        terminal.write_line(f"{kind}: {line}")
