"""How both aggregators open their durable state: one SQLite file, 0600, commits synced."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from transport.state_schema import other_schema

BUSY_TIMEOUT_S = 10.0
SCHEMA_VERSION: Final = 1
"""Of the state of both parties; files from before it was marked have these tables too."""


class StateUnusable(Exception):
    """The state file cannot be trusted or opened; the message says how to go on."""


class StorageUnavailable(OSError):
    """A disk takes nothing now: full, read-only or failing. Nothing was changed; try again.

    The message names the file.
    """

    def __init__(self, path: Path | str, why: object) -> None:
        super().__init__(f"{path}: cannot be written: {why}")
        self.path = str(path)


def open_state(path: Path, schema: str) -> sqlite3.Connection:
    """Open or create a state file, 0600, WAL, synchronous=FULL, autocommit.

    Raises      StateUnusable when the file is no sound SQLite database, or another version's
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
    )
    try:
        problem = other_schema(path, connection, SCHEMA_VERSION, unmarked=SCHEMA_VERSION)
        if problem is not None:
            connection.close()
            raise StateUnusable(problem)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        for statement in schema.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StateUnusable(f"{path}: expected a sound state file, got: {error}") from error
    if verdict != "ok":
        connection.close()
        raise StateUnusable(f"{path}: expected a sound state file, got: {verdict}")
    return connection


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a state file for reading, beside the process that writes it."""
    if not path.is_file():
        raise StateUnusable(f"{path}: expected a state file, got nothing")
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One immediate transaction: other writers wait from its first line on.

    Raises      StorageUnavailable when the disk does not take it
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite itself ends it on a full disk
                connection.execute("ROLLBACK")
            raise
    except sqlite3.OperationalError as error:
        (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
        raise StorageUnavailable(path, error) from error


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file so that a crash leaves the old or the new one, whole.

    Raises      StorageUnavailable when the disk does not take it
    """
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageUnavailable(path, error.strerror) from error
