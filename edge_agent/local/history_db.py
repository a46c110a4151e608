"""The file of the local history: private, bounded in bytes, and never worth stopping for."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from transport.state_schema import other_schema

from .history_tables import BASE, SCHEMA_VERSION, TABLES

LEAST_BYTES: Final = 4 << 20
_WAL_SHARE: Final = 8
"""One part in 8 of the allowed bytes is left to the write-ahead log."""
_BUSY_S: Final = 0.05
"""A reader never holds the writer up in WAL mode; another writer does not exist."""


class HistoryUnavailable(Exception):
    """The history cannot be used: one line says what is wrong and how to get on."""


def open_file(path: Path, max_bytes: int) -> sqlite3.Connection:
    """Open the file for writing, made 0600 where it is missing.

    A file that SQLite refuses is removed: it holds nothing but a day of raw data.
    Raises      HistoryUnavailable
    """
    if max_bytes < LEAST_BYTES:
        raise HistoryUnavailable(f"expected at least {LEAST_BYTES} bytes, got {max_bytes}")
    try:
        _make_private(path)
        try:
            return _connect(path, max_bytes)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            remove(path)
            _make_private(path)
            return _connect(path, max_bytes)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HistoryUnavailable(f"{path}: {reason}; move it away and start again") from None


def open_readonly(path: Path) -> sqlite3.Connection:
    """Open the file beside a running agent.

    Raises      HistoryUnavailable
    """
    if not path.exists():
        raise HistoryUnavailable(f"expected a history at {path}, found none; has the agent run?")
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
        problem = other_schema(path, db, SCHEMA_VERSION)
    except sqlite3.Error as error:
        raise HistoryUnavailable(f"{path}: {error}") from None
    if problem is not None:
        db.close()
        raise HistoryUnavailable(problem)
    return db


def remove(path: Path) -> None:
    """Delete the file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def used_bytes(db: sqlite3.Connection) -> int:
    """Bytes of pages that hold something."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def file_bytes(path: Path) -> int:
    """Bytes on disk of the file and of what SQLite keeps beside it."""
    total = 0
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            total += Path(f"{path}{suffix}").stat().st_size
    return total


def wal_bytes(path: Path) -> int:
    """Bytes of the write-ahead log; a reader that stays long keeps it from being emptied."""
    try:
        return Path(f"{path}-wal").stat().st_size
    except OSError:
        return 0


def wal_limit(max_bytes: int) -> int:
    """Bytes that the write-ahead log may have."""
    return max_bytes // _WAL_SHARE


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run one transaction, undone when it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _make_private(path: Path) -> None:
    """Make the file 0600 before SQLite sees it: `-wal` and `-shm` take the file's mode."""
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise HistoryUnavailable(f"{path}: expected a regular file of this user")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _connect(path: Path, max_bytes: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_S)
    try:
        problem = other_schema(path, db, SCHEMA_VERSION, unmarked=SCHEMA_VERSION)
        if problem is not None:
            raise HistoryUnavailable(f"{problem}, or move the file away")
        db.execute("PRAGMA journal_mode = WAL").fetchone()
        # A crash of the machine may lose the last seconds; a crash of the agent loses nothing.
        db.execute("PRAGMA synchronous = NORMAL")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        limit = wal_limit(max_bytes)
        db.execute(f"PRAGMA max_page_count = {(max_bytes - limit) // size}")
        db.execute(f"PRAGMA journal_size_limit = {limit // 2}")
        db.execute(f"PRAGMA wal_autocheckpoint = {max(16, limit // 4 // size)}")
        for statement in (*BASE, *(table.create for table in TABLES)):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("quick_check failed")
    except BaseException:
        db.close()
        raise
    return db
