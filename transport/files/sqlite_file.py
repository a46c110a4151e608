"""Open SQLite files one way: private, of this version, and as durable as their content needs."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_PRIMARY_CODE: Final = 0xFF


class OtherSchema(Exception):
    """Another version wrote the file, which is sound and marked `found`, 0: not at all."""

    def __init__(self, message: str, found: int) -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteFile:
    """What a program keeps in a file, and how.

    tables        statements that make what is missing
    version       of the tables; None: the file can be made anew, and is not marked
    unmarked      the version that a file without a mark counts as
    upgrades      older version -> statements that make the next one of it, tables being there
    backed_up     before an upgrade the file is copied to PATH.schema-N, N being its version
    synchronous   FULL: a commit is on disk when it returns. NORMAL: a crash of the machine may
                  lose the last commits. OFF: it may lose the file
    journal       TRUNCATE leaves nothing of what was erased beside the file
    erases        what is deleted is overwritten
    busy_s        how long to wait for another writer
    private       0600, whatever the umask
    follows_links an operator may have put the file elsewhere by a link
    checked       SQLite looks through the whole file first
    cache_kib     pages that are kept in memory; None: SQLite's own measure, 2 MB
    """

    tables: str
    version: int | None
    unmarked: int = 0
    upgrades: Mapping[int, Sequence[str]] = field(default_factory=dict)
    backed_up: bool = False
    synchronous: Literal["FULL", "NORMAL", "OFF"] = "FULL"
    journal: Literal["WAL", "TRUNCATE"] = "WAL"
    erases: bool = False
    busy_s: float = 5.0
    private: bool = True
    follows_links: bool = False
    checked: bool = True
    cache_kib: int | None = None

    def open(self, path: Path) -> sqlite3.Connection:
        """Open or make it. Raises OtherSchema with the file unchanged, sqlite3.Error, OSError."""
        if self.private:
            make_private(path, follow_links=self.follows_links)
        db = connect(path, self.busy_s)
        try:
            self._prepare(db, path)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection, path: Path) -> None:
        found = schema_of(db) or self.unmarked
        if self.version is not None and found not in self.upgrades:
            refuse_other_schema(path, db, self.version, unmarked=self.unmarked)
        if self.checked:
            check_sound(db)
        if self.erases:
            db.execute("PRAGMA secure_delete = ON")
        filled = db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        if self.backed_up and self.version is not None and found < self.version and filled:
            back_up(db, Path(f"{path}.schema-{found}"))
        db.execute(f"PRAGMA journal_mode = {self.journal}").fetchone()
        db.execute(f"PRAGMA synchronous = {self.synchronous}")
        if self.cache_kib is not None:
            db.execute(f"PRAGMA cache_size = -{self.cache_kib}")
        db.executescript(self.tables)
        if self.version is not None and schema_of(db) != self.version:
            with transaction(db):
                for older in range(found, self.version):
                    for statement in self.upgrades.get(older, ()):
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {self.version}")


def back_up(db: sqlite3.Connection, to: Path) -> None:
    """Copy a file whole or not at all, 0600, on disk at return; an older copy is replaced.

    Raises      OSError where there is no room for it
    """
    beside = to.with_name(to.name + ".new")
    remove(beside)
    make_private(beside)
    try:
        with closing(connect(beside, 0.0)) as copy:
            db.backup(copy)
    except sqlite3.OperationalError as error:
        remove(beside)
        raise OSError(f"{to}: expected room for a copy before the upgrade: {error}") from error
    sync(beside)
    beside.replace(to)
    sync(to.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def connect(path: Path, busy_s: float) -> sqlite3.Connection:
    """Connect to a file for manual transactions, and set nothing about it."""
    return sqlite3.connect(path, isolation_level=None, timeout=busy_s, check_same_thread=False)


def connect_readonly(
    path: Path,
    *,
    version: int | None = None,
    checked: bool = False,
    foreign: bool = False,
    busy_s: float = 5.0,
) -> sqlite3.Connection:
    """Connect for reading alone, beside the process that writes.

    version     of the tables; None: any
    foreign     another program made the file: nothing that it brings along runs
    Raises      OtherSchema, sqlite3.Error
    """
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if foreign else ''}"
    db = sqlite3.connect(uri, uri=True, timeout=busy_s)
    try:
        if foreign:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
        if version is not None:
            refuse_other_schema(path, db, version)
        if checked:
            check_sound(db)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run one write transaction: other writers wait from its first line; undone when it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite itself ends it on a full disk
            db.execute("ROLLBACK")
        raise


def code_of(error: sqlite3.Error) -> int:
    """Give SQLite's primary code; an error without one is of our own finding, and means damage."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & _PRIMARY_CODE


def schema_of(db: sqlite3.Connection) -> int:
    """Give the version that a file is marked with; 0 for one that is new or was never marked."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def refuse_other_schema(
    path: Path | str, db: sqlite3.Connection, reads: int, *, unmarked: int = 0
) -> None:
    """Raise OtherSchema for a sound file not of version `reads`; `unmarked` counts as so."""
    found = schema_of(db) or unmarked
    if found == reads:
        return
    if not found:
        raise OtherSchema(f"{path}: expected schema {reads}, found it unmarked", found)
    writer = "a newer" if found > reads else "an older"
    raise OtherSchema(
        f"{path}: written by {writer} version of Pointillist (schema {found}, this one reads "
        f"{reads}); it is sound: start that version again",
        found,
    )


def check_sound(db: sqlite3.Connection) -> None:
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"quick_check failed: {verdict}")


def make_private(path: Path, *, follow_links: bool = False) -> None:
    """Make a file 0600 before SQLite sees it: its `-wal` and `-shm` take the file's mode."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path}: expected a regular file")
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").chmod(0o600)


def remove(path: Path) -> None:
    """Delete a file and what SQLite keeps beside it."""
    for suffix in ("", *SIDE_FILES):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
