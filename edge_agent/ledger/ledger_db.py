"""The ledger's SQLite file: schema, durable settings, and what its errors mean."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from transport.files import sqlite_file
from transport.files.sqlite_file import OtherSchema, SqliteFile, code_of

from .ledger_errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerFull,
    LedgerMissing,
    LedgerOfOtherVersion,
    LedgerRefused,
)

SCHEMA_VERSION: Final = 2
_REFUSALS: Final = {
    sqlite3.SQLITE_FULL: LedgerFull,
    sqlite3.SQLITE_BUSY: LedgerBusy,
    sqlite3.SQLITE_LOCKED: LedgerBusy,
    sqlite3.SQLITE_CORRUPT: LedgerCorrupt,
    sqlite3.SQLITE_NOTADB: LedgerCorrupt,
    sqlite3.SQLITE_ERROR: LedgerCorrupt,
}
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

_LEFT: Final = """;
CREATE TABLE IF NOT EXISTS left_reports (host BLOB NOT NULL, series TEXT NOT NULL,
  window_start INTEGER NOT NULL, window_end INTEGER NOT NULL, task_id BLOB NOT NULL,
  cohort INTEGER NOT NULL, epoch_id BLOB NOT NULL, report_id BLOB NOT NULL, tag_h BLOB NOT NULL,
  bytes INTEGER NOT NULL, sealed_s INTEGER NOT NULL, fate TEXT NOT NULL, fate_s INTEGER,
  log TEXT NOT NULL, spool_id INTEGER, PRIMARY KEY (host, series, window_start)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS left_by_end ON left_reports (window_end);
CREATE INDEX IF NOT EXISTS left_by_spool ON left_reports (spool_id) WHERE spool_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS tasks (task_id BLOB PRIMARY KEY, signed BLOB NOT NULL) WITHOUT ROWID
"""
"""What left this host, of which the ledger itself asks nothing; apart, for the same reason."""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file with WAL and synchronous=FULL.

    Raises      LedgerMissing, LedgerCorrupt, LedgerBusy, LedgerOfOtherVersion
    """
    if not create:
        _need(path)
    file = SqliteFile(
        tables=(_SCHEMA if create else "") + _ROSTERS + _LEFT,
        version=SCHEMA_VERSION,
        unmarked=SCHEMA_VERSION if create else 0,
        follows_links=True,
    )
    with translated():
        return file.open(path)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open the file for `agent ledger show`, beside a running agent."""
    _need(path)
    with translated():
        return sqlite_file.connect_readonly(path, version=SCHEMA_VERSION, checked=True)


def _need(path: Path) -> None:
    if not path.exists():
        raise LedgerMissing(f"expected a ledger at {path}, found no file")


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run one transaction: durable when the block ends, undone when it raises."""
    with translated(), sqlite_file.transaction(db):
        yield


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn SQLite's errors into this ledger's refusals."""
    try:
        yield
    except OtherSchema as problem:
        raise (LedgerOfOtherVersion if problem.found else LedgerCorrupt)(str(problem)) from None
    except sqlite3.Error as error:
        refusal = _REFUSALS.get(code_of(error), LedgerRefused)
        raise refusal(f"SQLite says: {error}") from error
