"""Child processes of a demo or a trial: started together, heard together, never left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from . import orphans
from .orphans import STOP_S

_REPOSITORY: Final = Path(__file__).resolve().parents[2]


class ChildFailed(Exception):
    """A process of the demo ended too early; the message shows the end of its log."""


class RoleProcess:
    """One process; what it prints on standard output are lines of JSON."""

    def __init__(self, name: str, module: Sequence[str], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._lines: SimpleQueue[str] = SimpleQueue()
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=_REPOSITORY,
                env=_environment(),
                start_new_session=True,  # a terminal's Ctrl-C reaches the parent alone
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                self._lines.put(line)

    def message(self, timeout_s: float) -> dict[str, Any]:
        """Give the next line as JSON. Raises ChildFailed where it ends or is silent."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                return dict(json.loads(self._lines.get(timeout=0.1)))
            except Empty:
                self.check()
        raise ChildFailed(f"{self.name}: expected a line within {timeout_s:.0f} s, got none")

    def heard(self) -> dict[str, Any] | None:
        """Give the next line as JSON where one has come; this waits for nothing."""
        try:
            return dict(json.loads(self._lines.get_nowait()))
        except Empty:
            return None

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raise ChildFailed when the process has ended with an error."""
        code = self.process.poll()
        if code:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise ChildFailed(f"{self.name} ended with {code}:\n{tail}")


def _environment() -> dict[str, str]:
    # One thread each: a few processes already share the cores.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONUNBUFFERED": "1"}


class Family:
    """All children of a run; leaving the block ends every one of them, and so does kill -9."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.children: list[RoleProcess] = []
        self._survivor = subprocess.Popen(
            [sys.executable, "-I", "-S", orphans.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def start(self, name: str, *module: str) -> RoleProcess:
        """Start `python -m module...`."""
        child = RoleProcess(name, module, self._logs)
        self.children.append(child)
        if (told := self._survivor.stdin) is not None:
            told.write(b"%d\n" % child.process.pid)
            told.flush()
        return child

    def check(self) -> None:
        for child in self.children:
            child.check()

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all children: politely, then not; a Ctrl-C meanwhile kills them at once."""
        try:
            for child in self.children:
                child.process.terminate()
            deadline = time.monotonic() + STOP_S
            for child in self.children:
                with suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            for child in self.children:
                child.process.kill()
                child.process.wait()
        self._survivor.communicate()  # the pipe ends, and nobody is left to be ended
