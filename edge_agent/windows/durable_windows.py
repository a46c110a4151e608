"""Windows in the making on the host's disk: a day, a week or eight weeks outlive the process."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from transport.files.sqlite_file import OtherSchema, SqliteFile
from transport.process.supervision import Closing

from .window_state import WindowState

_SCHEMA: Final = """
DROP TABLE IF EXISTS windows;  -- raw totals without an expiry
CREATE TABLE IF NOT EXISTS open_windows (
    series TEXT NOT NULL, window INTEGER NOT NULL, state BLOB NOT NULL, expires_s INTEGER NOT NULL,
    PRIMARY KEY (series, window)
) WITHOUT ROWID
"""


SCHEMA_VERSION: Final = 1
"""Files from before it was marked have this table too."""


_FILE: Final = SqliteFile(
    tables=_SCHEMA,
    version=SCHEMA_VERSION,
    unmarked=SCHEMA_VERSION,
    journal="TRUNCATE",
    erases=True,
    checked=False,
)


class AccumulatorsUnavailable(Exception):
    """The file of open windows cannot be used: says what is wrong and how to recover."""


class DurableAccumulators(Closing):
    """A SQLite file, 0600, with the totals of each open window; erased after sealing.

    What it holds is raw: `secure_delete` overwrites what is erased, and the journal is truncated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            _need_private(path)
            self._db = _FILE.open(path)
        except OtherSchema as problem:
            raise AccumulatorsUnavailable(str(problem)) from None
        except (OSError, sqlite3.Error) as error:
            raise _unavailable(path, error) from None

    def load(self, series: str, window: int) -> WindowState | None:
        """Return the totals of a window, None when nothing is kept."""
        try:
            found = self._db.execute(
                "SELECT state FROM open_windows WHERE series = ? AND window = ?", (series, window)
            ).fetchone()
            return None if found is None else WindowState.from_json(found[0])
        except (sqlite3.Error, ValueError) as error:
            raise _unavailable(self._path, error) from None

    def save(self, series: str, window: int, state: WindowState, expires_s: int) -> None:
        """Replace the totals of a window, on disk when this returns.

        expires_s   from this second on no report can need them
        """
        self._write(
            "INSERT OR REPLACE INTO open_windows VALUES (?, ?, ?, ?)",
            (series, window, state.to_json(), expires_s),
        )

    def erase(self, series: str, window: int) -> None:
        """Forget a window: call it once its report is sealed."""
        self._write("DELETE FROM open_windows WHERE series = ? AND window = ?", (series, window))

    def erase_before(self, series: str, window: int) -> int:
        """Forget windows that can no longer be reported; return how many there were."""
        return self._write(
            "DELETE FROM open_windows WHERE series = ? AND window < ?", (series, window)
        )

    def erase_expired(self, now_s: int) -> int:
        """Forget what no report can need, of any series; return how many windows."""
        return self._write("DELETE FROM open_windows WHERE expires_s <= ?", (now_s,))

    def windows(self, series: str) -> list[int]:
        """Return the starts of the windows that are kept, oldest first."""
        rows = self._db.execute(
            "SELECT window FROM open_windows WHERE series = ? ORDER BY window", (series,)
        )
        return [row[0] for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> int:
        try:
            return self._db.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise _unavailable(self._path, error) from None


def _need_private(path: Path) -> None:
    """Refuse an older file with wider rights: others may have read it."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode & 0o777
        if mode & 0o077:
            raise AccumulatorsUnavailable(f"{path}: expected mode 0600, got {mode:04o}")


def _unavailable(path: Path, error: Exception) -> AccumulatorsUnavailable:
    reason = getattr(error, "strerror", None) or str(error)
    return AccumulatorsUnavailable(
        f"{path}: {reason}. Its windows are lost; move the file away and start again"
    )
