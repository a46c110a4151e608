"""Launches from profilers: SQLite of Nsight Systems, JSON of rocprofv3."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import ijson

from transport.files.sqlite_file import connect_readonly
from transport.process.printable import first_line, listed, printable

from . import launch
from .kineto import open_trace
from .launch import LONGEST_NAME, MOST_ROWS, JsonDepth, Launch, LaunchesRefused, Skip

MAGIC: Final = b"SQLite format 3\x00"
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_BY_NODE: Final = "nsys profile --cuda-graph-trace=node"
_NSYS_NAMES: Final = ("demangledName", "shortName", "mangledName")
_COPIES: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MOST_STRINGS: Final = 2_000_000
_MOST_VALUE: Final = 1 << 20
_EXPORT: Final = (
    "nsys export --type sqlite writes such a file; of ROCm: rocprofv3 --kernel-trace "
    "--output-format csv"
)


def sqlite_launches(path: Path, skipped: Counter[Skip], remarks: list[str]) -> Iterator[Launch]:
    """Yield each kernel, copy and fill of an export; of graphs without kernels a remark tells.

    Raises      LaunchesRefused where it is no export of Nsight Systems, or holds no kernels
    """
    try:
        with closing(connect_readonly(path, foreign=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            tables = _tables(database)
            if _KERNELS not in tables and _GRAPHS in tables:
                raise LaunchesRefused(
                    f"expected kernels, found launches of graphs alone ({_GRAPHS})",
                    f"record with {_BY_NODE}",
                )
            if _KERNELS not in tables:
                raise LaunchesRefused(
                    f"expected an export of Nsight Systems (table {_KERNELS}), "
                    f"got a SQLite file with tables {listed(sorted(tables))}",
                    _EXPORT,
                )
            columns = _columns(database, _KERNELS)
            name = next((column for column in _NSYS_NAMES if column in columns), None)
            if name is None or not {"start", "end"} <= columns or "StringIds" not in tables:
                raise LaunchesRefused(
                    f"expected start, end and demangledName in {_KERNELS} and a table StringIds",
                    _EXPORT,
                )
            yield from _kernels(database, name, skipped)
            yield from _transfers(database, tables, skipped)
            if _GRAPHS in tables and {"start", "end"} <= _columns(database, _GRAPHS):
                remarks += _whole_graphs(database)
    except sqlite3.Error as error:
        raise LaunchesRefused(f"the SQLite file cannot be read: {printable(str(error))}") from None
    except (UnicodeDecodeError, MemoryError):  # SQLite's own message quotes the file's bytes
        raise LaunchesRefused("the SQLite file cannot be read: its schema is no text") from None


def _tables(database: sqlite3.Connection) -> set[str]:
    """Name the plain tables: a virtual one or a view would run what the file says."""
    rows = database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' LIMIT 10000")
    return {str(name) for name, sql in rows if not str(sql).upper().startswith("CREATE VIRTUAL")}


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Name the stored columns of one of our own tables' names; a computed one is none."""
    rows = database.execute(f"PRAGMA table_xinfo({table})")
    return {str(row[1]) for row in rows if row[6] == 0}


def _kernels(database: sqlite3.Connection, name: str, skipped: Counter[Skip]) -> Iterator[Launch]:
    strings = _strings(database)
    rows = database.execute(f"SELECT {name}, start, end FROM {_KERNELS}")  # noqa: S608 our own words
    for number, (text, start, end) in enumerate(rows):
        if number >= MOST_ROWS:
            raise LaunchesRefused(f"expected at most {MOST_ROWS:,} kernels")
        found = strings.get(text) if isinstance(text, int) else text
        if not isinstance(found, str) or not found:
            skipped[Skip.NO_NAME] += 1
        elif (time_ns := launch.duration(start, end, skipped)) is not None:
            yield Launch(found[:LONGEST_NAME], 1, time_ns)


def _whole_graphs(database: sqlite3.Connection) -> Iterator[str]:
    """Say how much time lies in launches of CUDA graphs, whose kernels the file does not tell."""
    rows = database.execute(f"SELECT start, end FROM {_GRAPHS} LIMIT {MOST_ROWS}")  # noqa: S608
    times = [launch.duration(start, end, Counter()) or 0 for start, end in rows]
    if any(times):
        yield (
            f"{sum(times) / 1e6:,.3f} ms more lie in {len(times):,} launches of CUDA graphs whose "
            f"kernels the file does not tell: {_BY_NODE} records them"
        )


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
                if (time_ns := launch.duration(start, end, skipped)) is not None:
                    yield Launch(f"{word} {_COPIES.get(copied, '')}".strip(), 1, time_ns)


_NO_JSON: Final = (ijson.JSONError, UnicodeDecodeError)
"""What ijson raises; of a string that is no UTF-8, Python's own error."""
_TOOL: Final = "rocprofiler-sdk-tool"
_HEAD: Final = re.compile(rb'^\s*\{\s*"' + _TOOL.encode() + rb'"\s*:\s*([\[{])')
_ROCPROF_NAMES: Final = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")
_MOST_SYMBOLS: Final = 1_000_000
_CHUNK_BYTES: Final = 1 << 16
_MOST_DIGITS: Final = 1_000
_LONG_NUMBER: Final = re.compile(rb"\d{%d}" % _MOST_DIGITS)


def is_rocprof(head: bytes) -> bool:
    """Tell by the first bytes of a file."""
    return _HEAD.match(head) is not None


def rocprof_launches(path: Path, head: bytes, skipped: Counter[Skip]) -> Iterator[Launch]:
    """Yield each dispatch, and each copy.

    head        the first bytes of the file
    Raises      LaunchesRefused where it breaks off
    """
    opened = _HEAD.match(head)
    process = f"{_TOOL}.item" if opened is not None and opened.group(1) == b"[" else _TOOL
    names = _symbols(path, process)
    for record in _items(path, f"{process}.buffer_records.kernel_dispatch.item"):
        info = record.get("dispatch_info") if isinstance(record, dict) else None
        name = names.get(_kernel(info), "")
        if not name:
            skipped[Skip.NO_NAME] += 1
        elif (time_ns := _duration(record, skipped)) is not None:
            yield Launch(name, 1, time_ns)
    for record in _items(path, f"{process}.buffer_records.memory_copy.item"):
        if (time_ns := _duration(record, skipped)) is not None:
            yield Launch("Memcpy", 1, time_ns)


def _symbols(path: Path, process: str) -> dict[int, str]:
    names: dict[int, str] = {}
    for symbol in _items(path, f"{process}.kernel_symbols.item"):
        if len(names) < _MOST_SYMBOLS and isinstance(symbol, dict):
            found = next(
                (symbol[key] for key in _ROCPROF_NAMES if isinstance(symbol.get(key), str)), ""
            )
            names[_kernel(symbol)] = found[:LONGEST_NAME]
    return names


def _kernel(record: Any) -> int:
    number = record.get("kernel_id") if isinstance(record, dict) else None
    return number if isinstance(number, int) else -1


def _items(path: Path, prefix: str) -> Iterator[Any]:
    """Yield the entries of one list; handles are 64 bits wide, so numbers are read as exact."""
    items: Any = ijson.sendable_list()
    parser = ijson.items_coro(items, prefix)
    given = 0
    try:
        for chunk in _chunks(path):
            parser.send(chunk)
            given += len(items)
            if given > MOST_ROWS:
                raise LaunchesRefused(f"expected at most {MOST_ROWS:,} entries")
            yield from items
            items.clear()
        parser.close()
    except (*_NO_JSON, ArithmeticError) as error:  # an exponent that no number has
        raise LaunchesRefused(f"expected JSON of rocprofv3: {first_line(error)}") from None
    yield from items


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the file; the parser of exact numbers would crash on one of thousands of digits."""
    before, depth = b"", JsonDepth()
    with open_trace(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            if _LONG_NUMBER.search(before + chunk):
                raise LaunchesRefused("expected JSON of rocprofv3: a number has too many digits")
            if depth.too_deep(chunk):
                raise LaunchesRefused(f"expected at most {launch.MOST_DEPTH:,} levels of JSON")
            before = chunk[-_MOST_DIGITS:]
            yield chunk


def _duration(record: Any, skipped: Counter[Skip]) -> int | None:
    known = record if isinstance(record, dict) else {}
    return launch.duration(known.get("start_timestamp"), known.get("end_timestamp"), skipped)
