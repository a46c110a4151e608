"""The file of the local history: private, bounded in bytes, and never worth stopping for."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from transport.files.sqlite_file import OtherSchema, SqliteFile, connect_readonly, remove

from .history_tables import BASE, SCHEMA_VERSION, TABLES

LEAST_BYTES: Final = 4 << 20
_WAL_SHARE: Final = 8
"""One part in 8 of the allowed bytes is left to the write-ahead log."""
_FILE: Final = SqliteFile(
    tables=";".join((*BASE, *(table.create for table in TABLES))),
    version=SCHEMA_VERSION,
    unmarked=SCHEMA_VERSION,
    synchronous="NORMAL",  # a crash of the agent loses nothing
    busy_s=0.05,  # no reader holds the writer up in WAL mode, and there is no other writer
)


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
        _need_own(path)
        try:
            return _connect(path, max_bytes)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            remove(path)
            return _connect(path, max_bytes)
    except OtherSchema as problem:
        raise HistoryUnavailable(f"{problem}, or move the file away") from None
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
        return connect_readonly(path, version=SCHEMA_VERSION)
    except OtherSchema as problem:
        raise HistoryUnavailable(str(problem)) from None
    except sqlite3.Error as error:
        raise HistoryUnavailable(f"{path}: {error}") from None


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


def _need_own(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_uid != os.geteuid():
            raise HistoryUnavailable(f"{path}: expected a regular file of this user")


def _connect(path: Path, max_bytes: int) -> sqlite3.Connection:
    db = _FILE.open(path)
    try:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        limit = wal_limit(max_bytes)
        db.execute(f"PRAGMA max_page_count = {(max_bytes - limit) // size}")
        db.execute(f"PRAGMA journal_size_limit = {limit // 2}")
        db.execute(f"PRAGMA wal_autocheckpoint = {max(16, limit // 4 // size)}")
    except BaseException:
        db.close()
        raise
    return db
