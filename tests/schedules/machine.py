"""Processes that can end at any step, and disks that can be full: one machine for all of them.

A step is each point that the product names to its tests (checkpoints of the runners, fault points
of agents, both sides of every transaction and of every file that is replaced). What was committed
by then is durable; everything else of the process is gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

from nacl.bindings import crypto_sign_open

from aggregator.helper import helper_state
from aggregator.leader import held_windows
from aggregator.state.state_file import StorageUnavailable, write_durably
from privacy import signing
from transport.files import sqlite_file


class Crash(BaseException):
    """The process is gone."""


class Process:
    """One process of the fleet, as long as the schedule lasts; it lives several lives.

    skew_s      its clock is so far ahead
    fuse        steps until it ends; None: it goes on
    disk_full   its disk takes nothing
    cut_off     it reaches no other machine
    """

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self.name, self._now = name, now
        self.skew_s = 0.0
        self.fuse: int | None = None
        self.disk_full = self.cut_off = False
        self.alive = False
        self.lives = 0
        self.down_until_s = 0.0

    def clock(self) -> float:
        return self._now() + self.skew_s

    def point(self, _step: str) -> None:
        """Take one step; the last one ends the process."""
        if self.fuse is None:
            return
        self.fuse -= 1
        if self.fuse < 0:
            self.fuse = None
            raise Crash(self.name)

    def kill(self, down_s: float = 0.0) -> None:
        """End it at once; whoever supervises it starts it again after so many seconds."""
        self.down_until_s = self._now() + down_s
        self.fuse = None
        if self.alive:
            self.alive = False
            self.let_go()

    def let_go(self) -> None:
        """Close what the operating system closes."""

    def calm_down(self) -> None:
        self.skew_s, self.fuse = 0.0, None
        self.disk_full = self.cut_off = False
        self.down_until_s = 0.0


class Machine:
    """Knows which process runs now, so that its disk and its fuse are asked."""

    def __init__(self) -> None:
        self._running: list[Process] = []

    @contextmanager
    def running(self, process: Process) -> Iterator[None]:
        """Run on behalf of a process; calls of another nest."""
        self._running.append(process)
        try:
            yield
        finally:
            self._running.pop()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stand between the product and SQLite's transactions and replaced files."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(sqlite_file, "transaction", self._transaction))
            stack.enter_context(patch.object(helper_state, "write_durably", self._write_durably))
            stack.enter_context(patch.object(held_windows, "BLOCK_BYTES", 1 << 10))
            stack.enter_context(patch.object(signing, "crypto_sign_open", _remembered))
            yield

    @contextmanager
    def _transaction(self, db: sqlite3.Connection) -> Iterator[None]:
        process = self._running[-1] if self._running else None
        if process is None:
            with _TRANSACTION(db):
                yield
            return
        with _TRANSACTION(db):
            process.point("transaction begun")
            yield
            process.point("before commit")
            if process.disk_full:
                raise _full_disk()
        process.point("after commit")

    def _write_durably(self, path: Path, content: bytes) -> None:
        process = self._running[-1] if self._running else None
        if process is None:
            _WRITE_DURABLY(path, content)
            return
        if process.disk_full:
            raise StorageUnavailable(path, "No space left on device")
        try:
            process.point("before rename")
        except Crash:
            path.with_name(path.name + ".new").write_bytes(content)
            raise
        _WRITE_DURABLY(path, content)
        process.point("after rename")


_remembered = lru_cache(maxsize=20_000)(crypto_sign_open)
"""Each signature is verified once: parties restart often here."""
_TRANSACTION = sqlite_file.transaction
_WRITE_DURABLY = write_durably


def _full_disk() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def copy_database(source: Path, target: Path) -> None:
    """Copy a state as a backup of a live file does; what lay there before is gone."""
    sqlite_file.remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    origin, copy = sqlite3.connect(source), sqlite3.connect(target)
    try:
        origin.backup(copy)
    finally:
        origin.close()
        copy.close()
