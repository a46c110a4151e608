"""Launches from the SQLite export of Nsight Systems. The file is untrusted: no view of it runs."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from transport.files.sqlite_file import connect_readonly
from transport.process.printable import listed, printable

from .launch import LONGEST_NAME, MOST_ROWS, Launch, LaunchesRefused, Skip, duration

MAGIC: Final = b"SQLite format 3\x00"
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NAMES: Final = ("demangledName", "shortName", "mangledName")
_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MOST_STRINGS: Final = 2_000_000
_MOST_VALUE: Final = 1 << 20
_EXPORT: Final = (
    "nsys export --type sqlite writes such a file; of ROCm: rocprofv3 --kernel-trace "
    "--output-format csv"
)


def sqlite_launches(path: Path, skipped: Counter[Skip]) -> Iterator[Launch]:
    """Yield each kernel, copy and fill of an export.

    Raises      LaunchesRefused where it is no export of Nsight Systems, or holds no kernels
    """
    try:
        with closing(_opened(path)) as database:
            tables = _tables(database)
            if _KERNELS not in tables:
                raise _refusal(tables)
            columns = _columns(database, _KERNELS)
            name = next((column for column in _NAMES if column in columns), None)
            if name is None or not {"start", "end"} <= columns or "StringIds" not in tables:
                raise LaunchesRefused(
                    f"expected start, end and demangledName in {_KERNELS} and a table StringIds",
                    _EXPORT,
                )
            yield from _kernels(database, name, skipped)
            yield from _transfers(database, tables, skipped)
    except sqlite3.Error as error:
        raise LaunchesRefused(f"the SQLite file cannot be read: {printable(str(error))}") from None
    except (UnicodeDecodeError, MemoryError):  # SQLite's own message quotes the file's bytes
        raise LaunchesRefused("the SQLite file cannot be read: its schema is no text") from None


def _opened(path: Path) -> sqlite3.Connection:
    """Open for reading alone; nothing that the file brings along runs."""
    database = connect_readonly(path, foreign=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return database


def _tables(database: sqlite3.Connection) -> set[str]:
    """Name the plain tables: a virtual one or a view would run what the file says."""
    rows = database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' LIMIT 10000")
    return {str(name) for name, sql in rows if not str(sql).upper().startswith("CREATE VIRTUAL")}


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Name the stored columns of one of our own tables' names; a computed one is none."""
    rows = database.execute(f"PRAGMA table_xinfo({table})")
    return {str(row[1]) for row in rows if row[6] == 0}


def _refusal(tables: set[str]) -> LaunchesRefused:
    if _GRAPHS in tables:
        return LaunchesRefused(
            f"expected kernels, found launches of graphs alone ({_GRAPHS})",
            "record with nsys profile --cuda-graph-trace=node",
        )
    return LaunchesRefused(
        f"expected an export of Nsight Systems (table {_KERNELS}), "
        f"got a SQLite file with tables {listed(sorted(tables))}",
        _EXPORT,
    )


def _kernels(database: sqlite3.Connection, name: str, skipped: Counter[Skip]) -> Iterator[Launch]:
    strings = _strings(database)
    rows = database.execute(f"SELECT {name}, start, end FROM {_KERNELS}")  # noqa: S608 our own words
    for number, (text, start, end) in enumerate(rows):
        if number >= MOST_ROWS:
            raise LaunchesRefused(f"expected at most {MOST_ROWS:,} kernels")
        found = strings.get(text) if isinstance(text, int) else text
        if not isinstance(found, str) or not found:
            skipped[Skip.NO_NAME] += 1
        elif (time_ns := duration(start, end, skipped)) is not None:
            yield Launch(found[:LONGEST_NAME], 1, time_ns)


def _strings(database: sqlite3.Connection) -> dict[int, str]:
    """Read the names by their number: a join would be as slow as a hostile file wants it."""
    if not {"id", "value"} <= _columns(database, "StringIds"):
        raise LaunchesRefused("expected id and value in StringIds", _EXPORT)
    rows = database.execute("SELECT id, value FROM StringIds LIMIT ?", (_MOST_STRINGS,))
    return {key: text[:LONGEST_NAME] for key, text in rows if isinstance(text, str)}


def _transfers(
    database: sqlite3.Connection, tables: set[str], skipped: Counter[Skip]
) -> Iterator[Launch]:
    for table, word in (
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "Memcpy"),
        ("CUPTI_ACTIVITY_KIND_MEMSET", "Memset"),
    ):
        columns = _columns(database, table) if table in tables else set()
        if {"start", "end"} <= columns:
            kind = "copyKind" if "copyKind" in columns else "0"
            rows = database.execute(f"SELECT {kind}, start, end FROM {table} LIMIT {MOST_ROWS}")  # noqa: S608
            for copied, start, end in rows:
                if (time_ns := duration(start, end, skipped)) is not None:
                    yield Launch(f"{word} {_COPIES.get(copied, '')}".strip(), 1, time_ns)
