"""The ledger's SQLite file: schema, durable settings, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from transport.state_schema import other_schema, schema_of

from .ledger_errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerFull,
    LedgerMissing,
    LedgerOfOtherVersion,
    LedgerRefused,
)

SCHEMA_VERSION: Final = 2
_PRIMARY_CODE: Final = 0xFF
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE hosts (host BLOB PRIMARY KEY, epoch_ctr INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE epochs (host BLOB NOT NULL, ledger_ctr INTEGER NOT NULL, opened_s INTEGER NOT NULL,
  PRIMARY KEY (host, ledger_ctr)) WITHOUT ROWID;
CREATE TABLE series (series TEXT PRIMARY KEY, version INTEGER NOT NULL,
  weight_millionths INTEGER NOT NULL, window_s INTEGER NOT NULL, task_id BLOB NOT NULL)
  WITHOUT ROWID;
CREATE TABLE entries (host BLOB NOT NULL, series TEXT NOT NULL, window_start INTEGER NOT NULL,
  window_end INTEGER NOT NULL, weight_millionths INTEGER NOT NULL, touched INTEGER NOT NULL,
  PRIMARY KEY (host, series, window_start)) WITHOUT ROWID;
CREATE INDEX entries_by_end ON entries (window_end);
CREATE TABLE spool (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB NOT NULL,
  value BLOB NOT NULL, publish_at_ms INTEGER NOT NULL, expires_s INTEGER NOT NULL);
"""

_ROSTERS: Final = """
CREATE TABLE IF NOT EXISTS rosters (leader_pk BLOB NOT NULL, helper_pk BLOB NOT NULL,
  version INTEGER NOT NULL, effective_from INTEGER NOT NULL, content TEXT NOT NULL,
  PRIMARY KEY (leader_pk, helper_pk, version)) WITHOUT ROWID
"""
"""Apart: a ledger of an earlier agent lacks it."""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file with WAL and synchronous=FULL.

    Raises      LedgerMissing, LedgerCorrupt, LedgerBusy, LedgerOfOtherVersion
    """
    if not create and not path.exists():
        raise LedgerMissing(f"expected a ledger at {path}, found no file")
    _keep_private(path)
    with translated():
        db = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
        try:
            if not create:
                _refuse_other_version(db, path)
            db.execute("PRAGMA journal_mode=WAL").fetchone()
            db.execute("PRAGMA synchronous=FULL")
            if create:
                db.executescript(_SCHEMA)
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            _check(db, path)
            db.execute(_ROSTERS)
        except BaseException:
            db.close()
            raise
    return db


def _keep_private(path: Path) -> None:
    """Make the file 0600 before SQLite sees it: its `-wal` and `-shm` take the file's mode."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").chmod(0o600)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open the file for `agent ledger show`, beside a running agent."""
    if not path.exists():
        raise LedgerMissing(f"expected a ledger at {path}, found no file")
    with translated():
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
        try:
            _refuse_other_version(db, path)
            _check(db, path)
        except BaseException:
            db.close()
            raise
    return db


def _refuse_other_version(db: sqlite3.Connection, path: Path) -> None:
    """Raises LedgerOfOtherVersion, LedgerCorrupt of a file that no agent marked."""
    if not schema_of(db):
        raise LedgerCorrupt(f"expected {path} with schema {SCHEMA_VERSION}, found it unmarked")
    problem = other_schema(path, db, SCHEMA_VERSION)
    if problem is not None:
        raise LedgerOfOtherVersion(problem)


def _check(db: sqlite3.Connection, path: Path) -> None:
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise LedgerCorrupt(f"expected {path} to pass quick_check, it did not")


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run one transaction: durable when the block ends, undone when it raises."""
    with translated():
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn SQLite's errors into this ledger's refusals."""
    try:
        yield
    except sqlite3.Error as error:
        raise _meaning(error) from error


def _meaning(error: sqlite3.Error) -> Exception:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY_CODE
    if code == sqlite3.SQLITE_FULL:
        return LedgerFull(f"SQLite says: {error}")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return LedgerBusy(f"SQLite says: {error}")
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}:
        return LedgerCorrupt(f"SQLite says: {error}")
    return LedgerRefused(f"SQLite says: {error}")
