"""Names of functions by build id and place, on disk: a file's symbols are searched once.

Holds names of what ran here: the file is 0600, local, bounded, and may be removed at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from transport.files.sqlite_file import SqliteFile, remove, transaction

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS symbols (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    build_id TEXT NOT NULL,
    offset INTEGER NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (build_id, offset)
);
"""
_MOST_NAME: Final = 4096
_FILE: Final = SqliteFile(
    tables=_SCHEMA, version=None, synchronous="OFF", busy_s=0.05, checked=False
)


class SymbolCache:
    """Names by (build id, offset in the file); of the bound's rows the oldest make room.

    A file that cannot be used is made anew; where that fails too, nothing is kept, and `failures`
    counts it: names are then searched each time.
    """

    def __init__(self, path: Path, most_names: int = 100_000, most_bytes: int = 64 << 20) -> None:
        self._most = most_names
        self.failures = 0
        self._db: sqlite3.Connection | None = None
        for attempt in range(2):
            try:
                self._db = _open(path, most_bytes)
                return
            except (sqlite3.Error, OSError):
                self.failures += 1
                if attempt == 0:
                    with suppress(OSError):
                        remove(path)

    def find(self, build_id: str, offsets: Sequence[int]) -> dict[int, str]:
        """Give the names that are known."""
        if self._db is None or not build_id:
            return {}
        found = {}
        with self._counted():
            for offset in offsets:
                row = self._db.execute(
                    "SELECT name FROM symbols WHERE build_id = ? AND offset = ?",
                    (build_id, offset),
                ).fetchone()
                if row is not None:
                    found[offset] = str(row[0])
        return found

    def keep(self, build_id: str, names: Mapping[int, str]) -> None:
        """Remember names of a file; one without a build id is not remembered."""
        if self._db is None or not build_id or not names:
            return
        rows = [(build_id, offset, name[:_MOST_NAME]) for offset, name in names.items()]
        with self._counted(), transaction(self._db):
            self._db.executemany(
                "INSERT OR REPLACE INTO symbols (build_id, offset, name) VALUES (?, ?, ?)", rows
            )
            self._db.execute(
                "DELETE FROM symbols WHERE number <= (SELECT max(number) FROM symbols) - ?",
                (self._most,),
            )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _counted(self) -> _Counted:
        return _Counted(self)


class _Counted(suppress):
    """A cache that fails is a slow search, not an error."""

    def __init__(self, cache: SymbolCache) -> None:
        super().__init__(sqlite3.Error, OverflowError)
        self._cache = cache

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        self._cache.failures += error is not None
        return isinstance(error, sqlite3.Error | OverflowError)


def _open(path: Path, most_bytes: int) -> sqlite3.Connection:
    db = _FILE.open(path)
    try:
        page = db.execute("PRAGMA page_size").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {max(most_bytes // page, 16)}")
        db.execute("SELECT build_id, offset, name FROM symbols LIMIT 1").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db
