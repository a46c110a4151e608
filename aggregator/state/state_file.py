"""How both aggregators open their durable state: one SQLite file, 0600, commits synced."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from transport.files import sqlite_file
from transport.files.sqlite_file import OtherSchema, SqliteFile

BUSY_TIMEOUT_S = 10.0
CACHE_KIB: Final = 16 << 10
"""Epochs come in no order of their names: with less their pages are written more than once."""

PRUNE_EVERY_S: Final = 3600.0
"""A party looks through its state for what has outlived its retention."""
SCHEMA_VERSION: Final = 1
"""Of a Helper's or witness's state, and a Leader's first; unmarked files have these tables too."""

_DISK_CODES: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}


class StateUnusable(Exception):
    """The state file cannot be trusted or opened; the message says how to go on."""


class StorageUnavailable(OSError):
    """A disk takes nothing now: full, read-only or failing. Nothing was changed; try again.

    The message names the file.
    """

    def __init__(self, path: Path | str, why: object) -> None:
        super().__init__(f"{path}: cannot be written: {why}")
        self.path = str(path)


def open_state(
    path: Path, schema: str, upgrades: Sequence[Sequence[str]] = ()
) -> sqlite3.Connection:
    """Open or create a state file, 0600, WAL, synchronous=FULL, autocommit.

    upgrades    what makes each version since the first of the one before
    Raises      StateUnusable when the file is no sound SQLite database, or another version's;
                StorageUnavailable when the disk takes nothing
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = SqliteFile(
        tables=schema,
        version=SCHEMA_VERSION + len(upgrades),
        unmarked=SCHEMA_VERSION,
        upgrades=dict(enumerate(upgrades, SCHEMA_VERSION)),
        backed_up=True,
        busy_s=BUSY_TIMEOUT_S,
        follows_links=True,
        cache_kib=CACHE_KIB,
    )
    try:
        return file.open(path)
    except OtherSchema as problem:
        raise StateUnusable(str(problem)) from None
    except sqlite3.DatabaseError as error:
        if sqlite_file.code_of(error) in _DISK_CODES:
            raise StorageUnavailable(path, error) from error
        raise StateUnusable(f"{path}: expected a sound state file, got: {error}") from error


def hold(lock: Path, refusal: str) -> int:
    """Lock a file for as long as its descriptor, which is given, is open.

    Raises      StateUnusable with the refusal, where another process holds it
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateUnusable(refusal) from error
    return descriptor


def open_read_only(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise StateUnusable(f"{path}: expected a state file, got nothing")
    return sqlite_file.connect_readonly(path, busy_s=BUSY_TIMEOUT_S)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One immediate transaction: other writers wait from its first line on.

    Raises      StorageUnavailable when the disk does not take it
    """
    try:
        with sqlite_file.transaction(connection):
            yield connection
    except sqlite3.OperationalError as error:
        (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
        raise StorageUnavailable(path, error) from error


def write_all_durably(contents: Mapping[Path, bytes]) -> None:
    """Replace many small files so that a crash leaves of each the old or the new one, whole.

    They are signed documents, which users of other roles read. The disk is waited for once: a wait
    for each of 12,500 files takes minutes.
    Raises      StorageUnavailable when the disk does not take them
    """
    path = Path()
    try:
        for path, content in contents.items():
            descriptor = _new_beside(path, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        os.sync()
        for path in contents:
            _beside(path).replace(path)
        os.sync()
    except OSError as error:
        raise StorageUnavailable(path, error.strerror) from error


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _new_beside(path: Path, mode: int) -> int:
    """Open a new file beside `path`; what lies there may be a link that somebody else made."""
    _beside(path).unlink(missing_ok=True)
    return os.open(_beside(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new one, whole.

    Raises      StorageUnavailable when the disk does not take it
    """
    temporary = _beside(path)
    try:
        descriptor = _new_beside(path, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sqlite_file.sync(path.parent)
    except OSError as error:
        raise StorageUnavailable(path, error.strerror) from error


class LeadershipLost(Exception):
    """Another machine leads, or may: this one must stop."""


class OtherLeader(Exception):
    """A database holds the state of another Leader."""


class StatementRows(Protocol):
    @property
    def rowcount(self) -> int: ...

    def __iter__(self) -> Any: ...

    def fetchone(self) -> Any: ...


class Readable(Protocol):
    """Takes statements that change nothing."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> StatementRows:
        """Run one. Raises StorageUnavailable, sqlite3.Error."""


class Statements(Readable, Protocol):
    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> Any: ...


class StateTables(Readable, Protocol):
    """A Leader's tables; one process at a time changes them."""

    def transaction(self) -> AbstractContextManager[Statements]:
        """Change, durably when the block has ended.

        Raises      StorageUnavailable: nothing was changed; LeadershipLost: another leads
        """

    def close(self) -> None: ...


KEEP_COUNTER: Final = (
    "INSERT INTO counters VALUES (?,?,?) ON CONFLICT (host_id) DO UPDATE SET "
    "ledger_ctr = excluded.ledger_ctr, not_before = excluded.not_before "
    "WHERE excluded.ledger_ctr > counters.ledger_ctr"
)
COUNTERS: Final = "SELECT host_id, ledger_ctr, not_before FROM counters"
