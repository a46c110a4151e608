"""How the local history is laid out: its tables, clustered by (boot, at_ns, ...), and snapshots
packed as compressed steps, each column in as many bytes as its largest step needs. A table whose
columns changed gets a new name; what is older is read as `HistoryTable.before` says.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.basics import NORMAL
from transport.files.sqlite_file import OtherSchema, SqliteFile, connect_readonly, remove

SCHEMA_VERSION: Final = 1
_MOST_INTEGER: Final = (1 << 63) - 1

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

_SMALL: Final = 4_096
MOST_SNAPSHOTS: Final = 10_000
MOST_CELLS: Final = 10_000
_MARK: Final = b"\2"
"""Before zlib's own bytes; packs of earlier versions have none: 8 bytes a step, the first too."""
_WIDTHS: Final = np.array([1, 2, 4, 8], np.uint8)
_LIMITS: Final = np.array([1 << 7, 1 << 15, 1 << 31], np.int64)


class Stored(Enum):
    """What a column holds; the value is SQLite's type of it, but for lists, which are JSON."""

    WHOLE = "INTEGER"
    REAL = "REAL"
    TEXT = "TEXT"
    BLOB = "BLOB"
    LIST = "JSON"


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """One column; `members` of the objects of a list, none: of pairs of whole numbers."""

    name: str
    stored: Stored
    optional: bool = False
    members: tuple[HistoryColumn, ...] = ()

    @property
    def sql(self) -> str:
        stored = "TEXT" if self.stored is Stored.LIST else self.stored.value
        return f"{self.name} {stored}{'' if self.optional else ' NOT NULL'}"

    def listed(self, members: Sequence[Any]) -> str:
        if not self.members:
            return json.dumps(members)
        names = [member.name for member in self.members]
        return json.dumps([dict(zip(names, _bounded(member), strict=True)) for member in members])


def _bounded(values: Iterable[Any]) -> list[Any]:
    """Keep what a process may have made up within SQLite's integers."""
    return [
        _MOST_INTEGER if type(value) is int and value > _MOST_INTEGER else value for value in values
    ]


@dataclass(frozen=True, eq=False)
class HistoryTable:
    """One table of rows in time; itself alone is equal to it, so that it is looked up fast.
    columns   after `boot`, `at_ns` and the key: what tells rows of one time apart, and the name
    named     which parts of its name a row is read with
    before    the table of older versions, of which `read_as` says what has changed, in SQL
    """

    name: str
    columns: tuple[HistoryColumn, ...]
    named: tuple[str, ...]
    key: tuple[str, ...] = ("seq", "name")
    before: HistoryTable | None = None
    read_as: Mapping[str, str] = field(default_factory=dict)

    @property
    def create(self) -> str:
        heads = (f"{name} INTEGER NOT NULL" for name in ("boot", "at_ns", *self.key))
        columns = ", ".join((*heads, *(column.sql for column in self.columns)))
        body = f"({columns}, PRIMARY KEY (boot, at_ns, {self.key[0]})) WITHOUT ROWID"
        return f"CREATE TABLE IF NOT EXISTS {self.name} {body}"

    @cached_property
    def insert(self) -> str:
        """Give the statement that adds a row; of two rows with one key the later stands."""
        marks = ", ".join("?" * (len(self.columns) + len(self.key) + 2))
        return f"INSERT OR REPLACE INTO {self.name} VALUES ({marks})"  # noqa: S608

    @cached_property
    def select(self) -> str:
        """Give the columns that are read: the number of the name where it has one, its own."""
        names = [name for name in self.key if name == "name"]
        names += [column.name for column in self.columns]
        return ", ".join(f"{self.read_as.get(name, name)} AS {name}" for name in names)

    def parts(self, present: Container[str]) -> list[HistoryTable]:
        """Give the tables that hold its rows in a file that has these, the older first."""
        return [table for table in (self.before, self) if table and table.name in present]

    @property
    def fields(self) -> tuple[HistoryColumn, ...]:
        """Give what a row that is read has, after its time."""
        return (*(_text(name) for name in self.named), *self.columns)

    @cached_property
    def lists(self) -> tuple[int, ...]:
        stored = enumerate(column.stored for column in self.columns)
        return tuple(place for place, kind in stored if kind is Stored.LIST)

    def write(self, values: Iterable[Any]) -> list[Any]:
        """Give what the file keeps of a row's values, in the order of the columns."""
        kept = _bounded(values)
        for place in self.lists:
            kept[place] = self.columns[place].listed(kept[place])
        return kept


def _whole(*names: str, optional: bool = False) -> tuple[HistoryColumn, ...]:
    return tuple(HistoryColumn(name, Stored.WHOLE, optional) for name in names)


def _real(name: str, optional: bool = False) -> HistoryColumn:
    return HistoryColumn(name, Stored.REAL, optional)


def _text(name: str) -> HistoryColumn:
    return HistoryColumn(name, Stored.TEXT)


def _list(name: str, *members: HistoryColumn) -> HistoryColumn:
    return HistoryColumn(name, Stored.LIST, members=members)


def _counted(what: str) -> tuple[HistoryColumn, ...]:
    """Calls seen, the estimate and its errors as `CountedCalls` has them, the share seen."""
    errors = (_real(name, optional=True) for name in ("variance", "below", "above"))
    return (*_whole("seen"), _real(what), *errors, _real("share"))


METRIC: Final = HistoryTable(
    "metric", (*_whole("span_ns"), _real("value")), ("source", "name", "key", "unit"), ("name",)
)
PACKED: Final = HistoryTable(
    "packed",
    (HistoryColumn("names", Stored.BLOB), *_whole("cells", "count", "span_ns"),
     HistoryColumn("times", Stored.BLOB), HistoryColumn("totals", Stored.BLOB)),
    METRIC.named,
    ("seq",),
)  # fmt: skip
"""Read back as metrics; each has many names, packed as its numbers are."""
ACTIVITY: Final = HistoryTable(
    "activity",
    (*_whole("gpu"), _text("family"), _text("application"), *_whole("count"),
     *_whole("gpu_time_ns", optional=True), *_whole("sampling_rate_millionths", "span_ns"),
     _list("log2_bins"), _list("copy_log2_bins")),
    ("source", "name"),
)  # fmt: skip
EVENT: Final = HistoryTable("event", (_text("detail"),), ("source", "name", "key"))
_BOUND: Final = f"{NORMAL} * root(variance)"
ONE_VARIANCE: Final = {"variance": "0.0 * variance", "below": _BOUND, "above": _BOUND}
"""What older versions wrote: random errors and bounds as one variance, NULL where none is known.

How much of it all rows share cannot be told any more, so that all of it is taken for a bound. A
reader gives SQLite `root`, which it has itself from 3.35 on.
"""


def _calls_table(name: str, before: str, columns: tuple[HistoryColumn, ...]) -> HistoryTable:
    named = ("source", "name")
    older = HistoryTable(before, columns, named, read_as=ONE_VARIANCE)
    return HistoryTable(name, columns, named, before=older)


KERNEL_CALLS: Final = _calls_table(
    "kernel_counts", "kernel_calls",
    (*_whole("pid", "start_ns"), _text("process"), _text("family"), *_whole("span_ns"),
     *_counted("launches"), *_whole("blocks", "threads")),
)  # fmt: skip
PROCESS_CALLS: Final = _calls_table(
    "process_counts", "process_calls",
    (*_whole("pid", "start_ns"), _text("container"), _text("pod"), _text("slurm_job"),
     _text("application"), *_whole("span_ns"), *_counted("launches"), *_whole("wait_ns"),
     _real("wait_share", optional=True),
     *_whole("live_bytes", "peak_bytes", "allocations", "frees", "oldest_age_ns", "untracked",
             optional=True),
     _list("copies", _text("direction"), *_counted("copies"), *_whole("bytes"),
           _list("log2_bins")),
     _list("collectives", _text("communicator"), _text("call"), *_counted("calls"),
           *_whole("bytes", "duration_ns")),
     _list("errors", _text("call"), *_whole("code", "failures"))),
)  # fmt: skip
_ESTIMATE: Final = (
    _real("gpu_time_ns"),
    _real("variance", optional=True),
    *_whole("windows", "estimated_ns"),
)
"""Of GPU time, as `EstimatedTime` has them."""
PROCESS_TIME: Final = HistoryTable(
    "process_gpu_time",
    (*_whole("pid", "start_ns"), _text("container"), _text("application"), _text("state"),
     *_whole("cupti_version", "span_ns", "recorded_ns", "lost"), *_ESTIMATE,
     _list("families", _text("family"), *_ESTIMATE),
     _list("kernels", *_whole("gpu"), _text("kernel"), _text("family"), _real("launches"),
           *_ESTIMATE, _real("bytes"), _real("delay_ns", optional=True)),
     _list("gpus", *_whole("gpu"), *map(_real, (
         "busy_ns", "compute_ns", "copy_ns", "collective_ns", "copy_beside_compute_ns",
         "collective_beside_compute_ns", "kernels_beside_ns")))),
    ("source", "name"),
)  # fmt: skip
"""GPU time of one process in some ten seconds: estimates for all of `span_ns`."""
REPORT: Final = HistoryTable(
    "report_input",
    (*_whole("window_start_s"), _text("task_id"), _list("cells")),
    ("source", "name"),
)
"""What a window of a series held before clipping and noise: (place, value) of all but zeros."""
TABLES: Final = (METRIC, PACKED, ACTIVITY, EVENT, KERNEL_CALLS, PROCESS_CALLS, PROCESS_TIME, REPORT)
ALL_STATEMENTS: Final = ";".join((*BASE, *(table.create for table in TABLES)))
"""They make what a file lacks."""
ALL_TABLES: Final = frozenset(
    part.name for table in TABLES for part in (table, table.before) if part is not None
)
"""By name, with those that only a file of an older version has."""
KINDS: Final[Mapping[str, HistoryTable]] = {
    "metric": METRIC, "activity": ACTIVITY, "event": EVENT, "kernel": KERNEL_CALLS,
    "process": PROCESS_CALLS, "gpu_time": PROCESS_TIME, "report": REPORT,
}  # fmt: skip
"""What a reader asks for."""
WHEN: Final = (*_whole("unix_ns", "unix_error_ns"), _text("boot_id"), *_whole("boottime_ns"))
"""What each row that is read begins with."""


def pack(values: NDArray[np.int64]) -> bytes:
    """Pack int64[n] or int64[n, k] as widths uint8[k], first values int64[k], steps by width."""
    rows = values.reshape(len(values), -1)
    first = rows[0].astype("<i8").tobytes()
    if len(rows) == 1:
        return _MARK + _compressed(bytes(rows.shape[1]) + first)
    steps = rows[1:] - rows[:-1]
    highest, lowest = steps.max(axis=0), steps.min(axis=0)
    widths = _WIDTHS[np.searchsorted(_LIMITS, np.maximum(highest, ~lowest), side="right")]
    widths[(highest == 0) & (lowest == 0)] = 0
    parts = [widths.tobytes(), first]
    for width in sorted(set(parts[0]) - {0}):
        columns = steps[:, widths == width].T.astype(f"<i{width}")
        # Byte by byte: the higher bytes of small numbers are all alike.
        planes = columns.view(np.uint8).reshape(*columns.shape, width).transpose(2, 0, 1)
        parts.append(planes.tobytes())
    return _MARK + _compressed(b"".join(parts))


def _compressed(plain: bytes) -> bytes:
    """Runs of a byte, and few bits for frequent ones: a search for longer matches finds few."""
    window, memory = (12, 5) if len(plain) < _SMALL else (15, 8)  # tables to be made anew each time
    packer = zlib.compressobj(1, zlib.DEFLATED, window, memory, zlib.Z_RLE)
    return packer.compress(plain) + packer.flush()


def unpack(packed: bytes, count: int, cells: int) -> NDArray[np.int64]:
    """Give int64[count, cells] back. Raises ValueError when the bytes are not such a pack."""
    if not (0 < count <= MOST_SNAPSHOTS and 0 < cells <= MOST_CELLS):
        raise ValueError(f"expected a pack of bounded size, got {count} x {cells}")
    marked = packed.startswith(_MARK)
    longest = 8 * count * cells + cells * marked
    try:
        plain = zlib.decompressobj().decompress(packed[marked:], longest + 1)
    except zlib.error as error:
        raise ValueError(f"expected packed snapshots: {error}") from None
    steps = _steps(plain, count, cells) if marked else _plain_steps(plain, count, cells)
    totals: NDArray[np.int64] = np.cumsum(steps.T, axis=0, dtype=np.int64)
    return totals


def _steps(plain: bytes, count: int, cells: int) -> NDArray[np.int64]:
    """Give int64[cells, count], the first value of each column before its steps."""
    widths = np.frombuffer(plain[:cells], np.uint8)
    _check(len(plain), int(cells * 9 + widths.sum(dtype=np.int64) * (count - 1)))
    if not np.isin(widths, (0, *_WIDTHS)).all():
        raise ValueError("expected steps of 0, 1, 2, 4 or 8 bytes in packed snapshots")
    steps = np.zeros((cells, count), np.int64)
    steps[:, 0] = np.frombuffer(plain, "<i8", cells, cells)
    at = 9 * cells
    for width in _WIDTHS.tolist():
        columns = np.flatnonzero(widths == width)
        planes = np.frombuffer(plain, np.uint8, width * len(columns) * (count - 1), at)
        found = planes.reshape(width, len(columns), count - 1).transpose(1, 2, 0)
        steps[columns, 1:] = np.ascontiguousarray(found).view(f"<i{width}")[:, :, 0]
        at += planes.nbytes
    return steps


def _plain_steps(plain: bytes, count: int, cells: int) -> NDArray[np.int64]:
    _check(len(plain), 8 * count * cells)
    return np.frombuffer(plain, "<i8").reshape(cells, count)


def _check(got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"expected {expected} bytes of packed snapshots, got {got}")


LEAST_BYTES: Final = 4 << 20
_WAL_SHARE: Final = 8
"""One part in 8 of the allowed bytes is left to the write-ahead log."""
_FILE: Final = SqliteFile(
    tables=ALL_STATEMENTS,
    version=SCHEMA_VERSION,
    unmarked=SCHEMA_VERSION,
    synchronous="NORMAL",  # a crash of the agent loses nothing
    busy_s=0.05,  # no reader holds the writer up in WAL mode, and there is no other writer
)


class HistoryUnavailable(Exception):
    """The history cannot be used: one line says what is wrong and how to get on."""


def open_file(path: Path, max_bytes: int) -> sqlite3.Connection:
    """Open or make the file; one that SQLite refuses is removed. Raises HistoryUnavailable."""
    if max_bytes < LEAST_BYTES:
        raise HistoryUnavailable(f"expected at least {LEAST_BYTES} bytes, got {max_bytes}")
    try:
        _need_own(path)
        try:
            return _connect(path, max_bytes)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            remove(path)
            return _connect(path, max_bytes)
    except OtherSchema as problem:
        raise HistoryUnavailable(f"{problem}, or move the file away") from None
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HistoryUnavailable(f"{path}: {reason}; move it away and start again") from None


def open_readonly(path: Path) -> sqlite3.Connection:
    """Open the file beside a running agent. Raises HistoryUnavailable."""
    if not path.exists():
        raise HistoryUnavailable(f"expected a history at {path}, found none; has the agent run?")
    try:
        return connect_readonly(path, version=SCHEMA_VERSION)
    except OtherSchema as problem:
        raise HistoryUnavailable(str(problem)) from None
    except sqlite3.Error as error:
        raise HistoryUnavailable(f"{path}: {error}") from None


def used_bytes(db: sqlite3.Connection) -> int:
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def file_bytes(path: Path) -> int:
    """Bytes on disk of the file and of what SQLite keeps beside it."""
    total = 0
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            total += Path(f"{path}{suffix}").stat().st_size
    return total


def wal_bytes(path: Path) -> int:
    """Bytes of the write-ahead log; a reader that stays long keeps it from being emptied."""
    try:
        return Path(f"{path}-wal").stat().st_size
    except OSError:
        return 0


def wal_limit(max_bytes: int) -> int:
    return max_bytes // _WAL_SHARE


def _need_own(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_uid != os.geteuid():
            raise HistoryUnavailable(f"{path}: expected a regular file of this user")


def _connect(path: Path, max_bytes: int) -> sqlite3.Connection:
    db = _FILE.open(path)
    try:
        size = db.execute("PRAGMA page_size").fetchone()[0]
        limit = wal_limit(max_bytes)
        db.execute(f"PRAGMA max_page_count = {(max_bytes - limit) // size}")
        db.execute(f"PRAGMA journal_size_limit = {limit // 2}")
        db.execute(f"PRAGMA wal_autocheckpoint = {max(16, limit // 4 // size)}")
    except BaseException:
        db.close()
        raise
    return db
