"""A plugin of pytest: tells `scripts.watchdog` which test each process runs, and since when.

The watchdog names it in PYTEST_PLUGINS, so that workers of pytest-xdist have it too.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

FOLDER: Final = "POINTILLIST_HEARTBEAT"
"""Names the folder of the beats in the environment: one file for each process, named by its id."""
STACKS_SIGNAL: Final = signal.SIGRTMIN + 7
"""Has a process write the Python stacks of its threads to `<pid>.stacks`, even from inside C."""
_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process does; `since_s` is CLOCK_MONOTONIC, `test` is empty between two tests."""

    pid: int
    since_s: float
    test: str

    def line(self) -> bytes:
        """Give a line of a fixed length, which one write replaces."""
        text = f"{self.since_s:.3f} {self.test}".encode(errors="replace")[: _BYTES - 1]
        return text.ljust(_BYTES - 1) + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of one process. Raises ValueError, OSError."""
        since_s, _, test = path.read_text(encoding="utf-8", errors="replace").partition(" ")
        return cls(int(path.name), float(since_s), test.strip())


def read_beats(folder: Path) -> Iterator[Beat]:
    """Give the last beat of each process."""
    for path in sorted(folder.iterdir()):
        if path.name.isdigit() and path.stat().st_size:
            yield Beat.read(path)


class _Heart:
    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
        self._fd = os.open(folder / str(self._pid), flags, 0o600)
        stacks = os.open(folder / f"{self._pid}.stacks", flags, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        self._beat("")

    def _beat(self, test: str) -> None:
        os.pwrite(self._fd, Beat(self._pid, time.monotonic(), test).line(), 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._beat(f"{item.nodeid} (setup)")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._beat(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._beat(f"{item.nodeid} (teardown)")

    def pytest_collection_finish(self) -> None:
        self._beat("")

    def pytest_runtest_logfinish(self) -> None:
        self._beat("")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._beat("")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to beat where a watchdog listens."""
    folder = os.environ.get(FOLDER)
    if folder is not None:
        config.pluginmanager.register(_Heart(Path(folder)), "heart")
