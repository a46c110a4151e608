"""Checks the two parties' transcripts when somebody asks, once for each state of their files."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import Event, Lock, Thread
from typing import Final

from .signed_chains import SignedChains, TranscriptFiles, check_apart

EVERY_S: Final = 10.0
"""Files that change all the time are checked no more often, whoever asks how often."""
_PATIENCE_S: Final = 2.0
"""How long whoever began a check waits for its verdict before being told to come back."""

_Stamp = tuple[tuple[int, int, int, int], ...]


class CheckState(StrEnum):
    """How a check stands."""

    UNNAMED = "unnamed"
    MISSING = "missing"
    CHECKING = "checking"
    CHECKED = "checked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TranscriptCheck:
    """How the newest check stands.

    detail      what is missing or was refused
    checked_s   when the verdict was there, unix seconds; 0 without one
    """

    state: CheckState
    detail: str = ""
    found: SignedChains | None = None
    checked_s: float = 0.0


class TranscriptChecker:
    """One check at a time; its verdict is kept until a file changes.

    files   None: nobody named them
    run     checks the files; in a process of its own where nothing is given
    """

    def __init__(
        self,
        files: TranscriptFiles | None,
        run: Callable[[TranscriptFiles], SignedChains] | None = None,
        every_s: float | None = None,
    ) -> None:
        self.files = files
        self._run = check_apart if run is None else run
        self._every_s = EVERY_S if every_s is None else every_s
        self._lock = Lock()
        self._ended = Event()
        self._stamp: _Stamp | None = None
        self._started_s: float | None = None
        self._check = TranscriptCheck(CheckState.CHECKING)

    def look(self, patience_s: float = _PATIENCE_S) -> TranscriptCheck:
        """Say how the check of the files stands as they are now, and begin it where it is due."""
        if self.files is None:
            return TranscriptCheck(CheckState.UNNAMED)
        try:
            stamp = _stamp(self.files)
        except OSError as error:
            return TranscriptCheck(CheckState.MISSING, error.strerror or "it cannot be read")
        with self._lock:
            if stamp == self._stamp:
                return self._check
            if not self._due():
                return TranscriptCheck(CheckState.CHECKING)
            self._begin(self.files, stamp)
        # Nobody else waits: answers to those who ask meanwhile come from few threads.
        return self.wait(patience_s)

    def wait(self, patience_s: float) -> TranscriptCheck:
        """Wait for the end of the check that goes on; say how it stands."""
        self._ended.wait(patience_s)
        return self._check

    def _due(self) -> bool:
        if self._started_s is None:
            return True
        return self._ended.is_set() and time.monotonic() - self._started_s >= self._every_s

    def _begin(self, files: TranscriptFiles, stamp: _Stamp) -> None:
        self._stamp, self._started_s = stamp, time.monotonic()
        self._check = TranscriptCheck(CheckState.CHECKING)
        self._ended.clear()
        Thread(target=self._go, args=(files,), name="transcripts", daemon=True).start()

    def _go(self, files: TranscriptFiles) -> None:
        refused = "the check could not be run; why stands in the server's log"
        found = SignedChains({}, refused)
        try:
            found = self._run(files)
        finally:
            state = CheckState.REFUSED if found.refused else CheckState.CHECKED
            self._check = TranscriptCheck(state, found.refused, found, time.time())
            self._ended.set()


def _stamp(files: TranscriptFiles) -> _Stamp:
    """Say which files these are now; raises OSError where one is no file."""
    found = []
    for path in (files.leader, files.helper):
        told = path.stat()
        if not stat.S_ISREG(told.st_mode):
            raise OSError(0, "expected a file, got something else")
        found.append((told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns))
    return tuple(found)
