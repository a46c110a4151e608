"""A plugin of pytest: tells `scripts.watchdog` what each process runs, and how each test ended.

The watchdog names it in PYTEST_PLUGINS, so that workers of pytest-xdist have it too.
"""

from __future__ import annotations

import faulthandler
import json
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
NESTED: Final = "PYTEST_CURRENT_TEST"
"""Set by pytest while it runs a test: how tests end that a test runs is not for us to tell."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended: `kind` is pytest's passed, failed, error, skipped, rerun and so on."""

    kind: str
    test: str
    why: str = ""


def read_outcomes(folder: Path) -> list[Outcome]:
    """Give what ended so far, in order; a line that is not whole yet is left out."""
    found: list[Outcome] = []
    for path in sorted(folder.glob("*.outcomes")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found += [Outcome(*json.loads(line)) for line in lines if line.endswith("\n")]
    return found


class _Outcomes:
    """Writes down how tests end, in the process that hears of all of them."""

    def __init__(self, folder: Path, config: pytest.Config) -> None:
        self._config = config
        self._grouped = config.getoption("dist", "no") == "loadgroup"
        self._file = (folder / f"{os.getpid()}.outcomes").open("a", encoding="utf-8", buffering=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind, *_ = self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        if kind:
            self._write(kind, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("error", report)

    def _write(self, kind: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        # pytest-xdist adds the group.
        test = report.nodeid.rpartition("@")[0] if self._grouped else ""
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(report.longrepr or "") if crash is None else crash.message
        first_line = why.partition("\n")[0][:_BYTES]
        self._file.write(json.dumps([kind, test or report.nodeid, first_line]) + "\n")


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
        if not hasattr(config, "workerinput") and NESTED not in os.environ:
            config.pluginmanager.register(_Outcomes(Path(folder), config), "outcomes")
