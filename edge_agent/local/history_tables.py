"""The tables of the local history: a new kind of row is one entry here, a writer and a reader.

Every table is clustered by (boot, at_ns, ...): rows are appended at the end, a span is one range,
and the oldest are dropped from the front. A file made by an older version gets the tables that it
lacks; a table whose columns changed gets a new name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """One table of rows in time.

    columns   after `boot` and `at_ns`, in order, as SQL
    key       the columns that tell rows of one time apart
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def create(self) -> str:
        """Give the statement that makes the table where it is missing."""
        columns = ", ".join(("boot INTEGER NOT NULL", "at_ns INTEGER NOT NULL", *self.columns))
        key = ", ".join(("boot", "at_ns", *self.key))
        body = f"({columns}, PRIMARY KEY ({key})) WITHOUT ROWID"
        return f"CREATE TABLE IF NOT EXISTS {self.name} {body}"

    @property
    def insert(self) -> str:
        """Give the statement that adds a row; of two rows with one key the later stands."""
        marks = ", ".join("?" * (len(self.columns) + 2))
        return f"INSERT OR REPLACE INTO {self.name} VALUES ({marks})"  # noqa: S608


METRIC: Final = HistoryTable(
    "metric",
    ("name INTEGER NOT NULL", "span_ns INTEGER NOT NULL", "value REAL NOT NULL"),
    ("name",),
)
PACKED: Final = HistoryTable(
    "packed",
    ("seq INTEGER NOT NULL", "names BLOB NOT NULL", "cells INTEGER NOT NULL",
     "count INTEGER NOT NULL", "span_ns INTEGER NOT NULL", "times BLOB NOT NULL",
     "totals BLOB NOT NULL"),
    ("seq",),
)  # fmt: skip
ACTIVITY: Final = HistoryTable(
    "activity",
    ("seq INTEGER NOT NULL", "name INTEGER NOT NULL", "gpu INTEGER NOT NULL",
     "family TEXT NOT NULL", "application TEXT NOT NULL", "count INTEGER NOT NULL",
     "gpu_time_ns INTEGER", "sampling_rate_millionths INTEGER NOT NULL",
     "span_ns INTEGER NOT NULL", "log2_bins TEXT NOT NULL", "copy_log2_bins TEXT NOT NULL"),
    ("seq",),
)  # fmt: skip
EVENT: Final = HistoryTable(
    "event",
    ("seq INTEGER NOT NULL", "name INTEGER NOT NULL", "detail TEXT NOT NULL"),
    ("seq",),
)
KERNEL_CALLS: Final = HistoryTable(
    "kernel_calls",
    ("seq INTEGER NOT NULL", "name INTEGER NOT NULL", "pid INTEGER NOT NULL",
     "start_ns INTEGER NOT NULL", "process TEXT NOT NULL", "family TEXT NOT NULL",
     "span_ns INTEGER NOT NULL", "seen INTEGER NOT NULL", "launches REAL NOT NULL",
     "variance REAL", "share REAL NOT NULL", "blocks INTEGER NOT NULL",
     "threads INTEGER NOT NULL"),
    ("seq",),
)  # fmt: skip
PROCESS_CALLS: Final = HistoryTable(
    "process_calls",
    ("seq INTEGER NOT NULL", "name INTEGER NOT NULL", "pid INTEGER NOT NULL",
     "start_ns INTEGER NOT NULL", "container TEXT NOT NULL", "pod TEXT NOT NULL",
     "slurm_job TEXT NOT NULL", "application TEXT NOT NULL", "span_ns INTEGER NOT NULL",
     "seen INTEGER NOT NULL", "launches REAL NOT NULL", "variance REAL", "share REAL NOT NULL",
     "wait_ns INTEGER NOT NULL", "wait_share REAL NOT NULL", "live_bytes INTEGER",
     "peak_bytes INTEGER", "allocations INTEGER", "frees INTEGER", "oldest_age_ns INTEGER",
     "untracked INTEGER", "copies TEXT NOT NULL", "collectives TEXT NOT NULL",
     "errors TEXT NOT NULL"),
    ("seq",),
)  # fmt: skip
TABLES: Final = (METRIC, PACKED, ACTIVITY, EVENT, KERNEL_CALLS, PROCESS_CALLS)

_BOOT: Final = (
    "CREATE TABLE IF NOT EXISTS boot (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL UNIQUE)"
)
_CLOCK: Final = """
CREATE TABLE IF NOT EXISTS clock (boot INTEGER NOT NULL, at_ns INTEGER NOT NULL,
    unix_ns INTEGER NOT NULL, error_ns INTEGER NOT NULL, PRIMARY KEY (boot, at_ns)) WITHOUT ROWID
"""
_NAME: Final = """
CREATE TABLE IF NOT EXISTS name (id INTEGER PRIMARY KEY, source TEXT NOT NULL,
    name TEXT NOT NULL, key TEXT NOT NULL, unit TEXT NOT NULL, UNIQUE (source, name, key, unit))
"""
BASE: Final = (_BOOT, _CLOCK, _NAME)
"""Boots, the mapping of their clocks, and names, which rows refer to by number."""
