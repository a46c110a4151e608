"""Files of SQLite are private, durable as their content needs, and undone where a block fails."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.state.state_file import open_state
from edge_agent.ledger import ledger_db
from edge_agent.local.history_tables import LEAST_BYTES, open_file
from edge_agent.windows import window_state
from transport.embedded.embedded_group import connect as connect_log
from transport.embedded.embedded_group import prepare_folder
from transport.files.sqlite_file import OtherSchema, SqliteFile, connect_readonly, transaction

NORMAL, FULL = 1, 2
TABLES = "CREATE TABLE IF NOT EXISTS t (x INTEGER NOT NULL)"
FILE = SqliteFile(tables=TABLES, version=3, unmarked=3)


def _log(path: Path) -> sqlite3.Connection:
    return connect_log(prepare_folder(path.parent / "log", None), 1.0, 1 << 20)


@pytest.mark.parametrize(
    ("opened", "synchronous", "journal"),
    [
        (lambda path: ledger_db.connect(path, create=True), FULL, "wal"),
        (lambda path: open_state(path, TABLES), FULL, "wal"),
        (window_state._FILE.open, FULL, "truncate"),
        (_log, FULL, "wal"),
        (lambda path: open_file(path, LEAST_BYTES), NORMAL, "wal"),
    ],
    ids=["ledger", "aggregators", "windows", "log", "history"],
)
def test_commit_is_on_disk_where_budget_reports_and_shares_need_it(
    opened: Callable[[Path], sqlite3.Connection], synchronous: int, journal: str, tmp_path: Path
) -> None:
    db = opened(tmp_path / "file.sqlite")
    assert db.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert db.execute("PRAGMA journal_mode").fetchone() == (journal,)
    db.close()


def test_open_windows_overwrite_what_they_erase(tmp_path: Path) -> None:
    db = window_state._FILE.open(tmp_path / "file.sqlite")
    assert db.execute("PRAGMA secure_delete").fetchone() == (1,)
    db.close()


def test_file_and_what_lies_beside_it_are_private_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    before = os.umask(0)
    try:
        db = FILE.open(path)
        db.execute("INSERT INTO t VALUES (1)")
        modes = {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {0o600}
    db.close()


def test_link_is_followed_only_where_an_operator_may_have_made_it(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    path.symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(OSError, match="symbolic links"):
        FILE.open(path)
    SqliteFile(tables=TABLES, version=3, unmarked=3, follows_links=True).open(path).close()
    assert (tmp_path / "elsewhere.sqlite").exists()


def test_file_that_nobody_marked_is_refused_where_every_writer_marks(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    with pytest.raises(OtherSchema, match="expected schema 3, found it unmarked"):
        SqliteFile(tables=TABLES, version=3).open(path)
    FILE.open(path).close()
    SqliteFile(tables=TABLES, version=3).open(path).close()


def test_damaged_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        FILE.open(path)
    assert path.read_bytes() == b"no database" * 1000


def test_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    db = FILE.open(tmp_path / "file.sqlite")
    with pytest.raises(sqlite3.IntegrityError), transaction(db):
        db.executemany("INSERT INTO t VALUES (?)", [(1,), (None,)])
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert not db.in_transaction
    db.close()


def test_reader_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a name with % and ?.sqlite"
    db = FILE.open(path)
    reader = connect_readonly(path, version=3, checked=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO t VALUES (1)")
    reader.close()
    db.close()
