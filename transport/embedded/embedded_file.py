"""The embedded log's file: where it lies, who may open it, its tables, its failures.

One SQLite database in WAL mode inside a folder of its own. Where several users share it, the folder
is setgid to their common group and the file is group-writable; SQLite gives `-wal` and `-shm` the
mode of the database, and the folder gives them its group.
"""

from __future__ import annotations

import fcntl
import grp
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transport.files import sqlite_file
from transport.files.ownership import set_folder
from transport.files.sqlite_file import OtherSchema, refuse_other_schema, schema_of, transaction
from transport.port import TransportUnavailable

FILE_NAME = "log.sqlite"
SCHEMA_VERSION = 1

# `ends` survives a purge, so that offsets never start again. A rowid table keeps values of several
# KiB out of the index that reads follow. STRICT: another writer cannot hand us text for bytes.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    topic_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL)
    STRICT;
CREATE TABLE IF NOT EXISTS ends (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    appended_s REAL NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS records_by_offset ON records (topic_id, partition, "offset");
CREATE TABLE IF NOT EXISTS commits (
    group_name TEXT NOT NULL, topic_id INTEGER NOT NULL, partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (group_name, topic_id, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    group_name TEXT NOT NULL, member TEXT NOT NULL, topic_ids TEXT NOT NULL,
    expires_s REAL NOT NULL, boot TEXT NOT NULL, pid_space INTEGER NOT NULL, pid INTEGER NOT NULL,
    PRIMARY KEY (group_name, member)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assignments (
    group_name TEXT NOT NULL, topic_id INTEGER NOT NULL, partition INTEGER NOT NULL,
    member TEXT NOT NULL, PRIMARY KEY (group_name, topic_id, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS generations (
    group_name TEXT PRIMARY KEY, generation INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """Turn SQLite's and the disk's failures into `TransportUnavailable`."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise  # our own bug, not the world's failure
    except (sqlite3.DatabaseError, OSError, OtherSchema) as error:
        raise TransportUnavailable(f"embedded log {path}: {error}") from error


def prepare_folder(folder: Path, group: str | None) -> Path:
    """Create the folder and an empty database with the right modes; returns the file's path.

    group       name of the users' common group, None where one user has the log for itself
    """
    path = folder / FILE_NAME
    if group is not None and not path.exists():
        _expect_member(group)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        set_folder(folder, 0o2770 if group is not None else 0o700, group=group)
    mode = 0o660 if group is not None else 0o600
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
    except FileExistsError:
        return path
    try:
        if group is not None:
            os.fchown(handle, -1, grp.getgrnam(group).gr_gid)
        os.fchmod(handle, mode)  # whatever the umask; SQLite copies it to -wal and -shm
    finally:
        os.close(handle)
    return path


def _expect_member(group: str) -> None:
    """Refuse to make for a group what its members could not open.

    Raises      PermissionError
    """
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        raise PermissionError(f"expected the group {group} that shares it, found none") from None
    if os.geteuid() != 0 and number not in {os.getegid(), *os.getgroups()}:
        raise PermissionError(
            f"expected a user of the group {group} that shares it; "
            f"root adds one by usermod --append --groups {group} USER"
        )


def connect(path: Path, busy_timeout_s: float, max_value_bytes: int) -> sqlite3.Connection:
    """Open one connection: manual transactions, WAL, an fsync per commit, bounded values."""
    connection = sqlite_file.connect(path, busy_timeout_s)
    try:
        # The file may have been written by another user of the group: bound what it makes us load.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_value_bytes + (1 << 16))
        connection.execute("PRAGMA trusted_schema=OFF")
        # What is purged is overwritten: sealed vectors are not to be found in free pages.
        connection.execute("PRAGMA secure_delete=ON").fetchone()
        _initialise(connection, path.parent)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        connection.execute("PRAGMA journal_size_limit=67108864")
    except BaseException:
        connection.close()
        raise
    return connection


def _initialise(connection: sqlite3.Connection, folder: Path) -> None:
    if _has_schema(connection):
        return
    # Switching to WAL does not wait for other connections, so the first ones take turns.
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not _has_schema(connection):
            _create_schema(connection)
    finally:
        os.close(handle)


def _has_schema(connection: sqlite3.Connection) -> bool:
    refuse_other_schema(FILE_NAME, connection, SCHEMA_VERSION, unmarked=SCHEMA_VERSION)
    return schema_of(connection) == SCHEMA_VERSION


def _create_schema(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("PRAGMA journal_mode=WAL")
    with transaction(connection):
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
