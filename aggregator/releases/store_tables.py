"""The tables of the Leader's DuckDB file, and how it lets go of windows that packs hold."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import duckdb
import pyarrow as pa

from .release_files import BASIS

TABLES: Final = """
CREATE TABLE IF NOT EXISTS windows (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, digest BLOB NOT NULL,
    PRIMARY KEY (series, cohort, window_start)
);
CREATE TABLE IF NOT EXISTS cells (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, window_s INTEGER,
    section VARCHAR, cell VARCHAR,
    unit VARCHAR, kind VARCHAR, value DOUBLE, standard_error DOUBLE, low DOUBLE, high DOUBLE,
    share DOUBLE, share_low DOUBLE, share_high DOUBLE, below_noise BOOLEAN,
    bias_bound DOUBLE, n_hosts INTEGER,
    epsilon DOUBLE, delta DOUBLE, domain VARCHAR, released_at TIMESTAMP, rejections VARCHAR,
    PRIMARY KEY (series, cohort, window_start, section, cell)
);
CREATE TABLE IF NOT EXISTS suppressed (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, window_s INTEGER, version INTEGER,
    reason VARCHAR, n_hosts INTEGER, n_min INTEGER, settled_at TIMESTAMP,
    UNIQUE (series, cohort, window_start, version)
);
ALTER TABLE cells ADD COLUMN IF NOT EXISTS bias_bound DOUBLE;
""" + "".join(
    f"ALTER TABLE cells ADD COLUMN IF NOT EXISTS {name} "
    f"{'BIGINT' if pa.types.is_integer(kind) else 'DOUBLE'};"
    for name, kind in BASIS.items()
)


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """A window that the database has.

    suppressed  it ended without a release; version: of its task, None when the task is gone
    """

    series: str
    cohort: int
    start: datetime
    suppressed: bool = False
    version: int | None = None


FORGOTTEN_AT_ONCE: Final = 10
"""Windows, so that the Leader's loop waits 0.1 s at most."""

OLDER_WINDOWS: Final = """
SELECT series, cohort, window_start FROM windows
WHERE window_start < ? AND window_start < (
    SELECT max(newest.window_start) FROM windows AS newest
    WHERE newest.series = windows.series AND newest.cohort = windows.cohort
)
ORDER BY window_start
"""
OLDER_SUPPRESSED: Final = (
    "SELECT series, cohort, window_start, version FROM suppressed WHERE window_start < ?"
)
_OF_WINDOW: Final = "WHERE series = ? AND cohort = ? AND window_start = ?"


def forget(database: duckdb.DuckDBPyConnection, keys: Sequence[StoredWindow]) -> None:
    """Delete windows in one transaction."""
    database.begin()
    try:
        for key in keys:
            window = (key.series, key.cohort, key.start)
            if key.suppressed:
                database.execute(
                    f"DELETE FROM suppressed {_OF_WINDOW} AND version IS NOT DISTINCT FROM ?",
                    (*window, key.version),
                )
            else:
                database.execute(f"DELETE FROM cells {_OF_WINDOW}", window)
                database.execute(f"DELETE FROM windows {_OF_WINDOW}", window)
        database.commit()
    except BaseException:
        with suppress(duckdb.Error):  # a full disk has ended the whole database
            database.rollback()
        raise
