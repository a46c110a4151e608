"""Launches from profilers: CSV tables, SQLite of Nsight Systems, JSON of rocprofv3."""

from __future__ import annotations

import csv
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import ijson

from transport.files.sqlite_file import connect_readonly
from transport.process.printable import first_line, listed, printable

from . import launch
from .kineto import NO_JSON, open_trace
from .launch import LONGEST_NAME, MOST_ROWS, JsonDepth, Launch, LaunchesRefused, Skip

_UNITS: Final = {
    "ns": 1, "nsecond": 1, "us": 1_000, "usecond": 1_000, "µs": 1_000, "ms": 1_000_000,
    "msecond": 1_000_000, "s": 10**9, "sec": 10**9, "second": 10**9,
}  # fmt: skip
_UNIT: Final = re.compile(r"\((\w{1,8})\)")
_NUMBER: Final = re.compile(r"\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,2})?")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3}){1,6}(?:\.\d{0,20})?")
_MOST_BEFORE: Final = 1_000
"""Lines that a profiler may print before its table."""
_MOST_FIELD: Final = 1 << 20
_FEWEST_HEADS: Final = 3
_LONG_METRICS: Final = frozenset({"gpu__time_duration.sum", "Duration"})


@dataclass(frozen=True, slots=True)
class TableForm:
    """One profiler's table; a column is named as its head begins, without the unit.

    time      the column of the time; of two, the second less the first
    count     None: a row is one launch
    unit      of the time where the head tells none; None: a row below the head tells it
    """

    form: str
    name: str
    time: tuple[str, ...]
    count: str | None = None
    unit: str | None = "ns"


_FORMS: Final = (
    TableForm("an Nsight Systems summary (CSV)", "Name", ("Total Time",), "Instances"),
    TableForm("an Nsight Systems summary (CSV)", "Operation", ("Total Time",), "Count"),
    TableForm("an Nsight Systems trace (CSV)", "Name", ("Duration",)),
    TableForm(
        "an Nsight Compute report (CSV)", "Kernel Name", ("gpu__time_duration.sum",), None, None
    ),
    TableForm("an Nsight Compute report (CSV)", "Kernel Name", ("Metric Value",)),
    TableForm("rocprofv3 statistics (CSV)", "Name", ("TotalDurationNs",), "Calls"),
    TableForm("a rocprofv3 trace (CSV)", "Kernel_Name", ("Start_Timestamp", "End_Timestamp")),
    TableForm("a rocprof trace (CSV)", "KernelName", ("BeginNs", "EndNs")),
    TableForm("an nvprof summary (CSV)", "Name", ("Time",), "Calls", None),
)

EXPORTS: Final = (
    "nsys stats --report cuda_gpu_kern_sum --format csv, ncu --csv --page raw, or "
    "rocprofv3 --kernel-trace --output-format csv"
)


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A table that was found: its form and its heads."""

    form: TableForm
    heads: tuple[str, ...]


def find_table(lines: Iterable[str]) -> CsvTable | None:
    """Find the head of a known table among the first lines, reading no farther than needed."""
    return next(filter(None, map(_known, map(_fields, islice(lines, _MOST_BEFORE)))), None)


def refuse_other_table(lines: Iterable[str]) -> None:
    """Refuse a table whose columns are none of those known; raises LaunchesRefused."""
    rows = [_fields(line) for line in islice(lines, _MOST_BEFORE) if line.strip()]
    for head, below in pairwise(rows):
        # Brackets close: those of a kernel's name, cut at commas, do not.
        balanced = all(f.count(a) == f.count(b) for f in head for a, b in ("()", "<>"))
        if len(head) == len(below) >= _FEWEST_HEADS and balanced:
            told = listed([title.strip() for title in head])
            raise LaunchesRefused(f"expected columns of names and GPU times, got {told}", EXPORTS)


def table_launches(
    lines: Iterable[str], table: CsvTable, skipped: Counter[Skip]
) -> Iterator[Launch]:
    """Yield the rows of a table, and of known ones below it; `lines` begin right behind its head.

    A profiler prints several tables below one another: an empty line ends each.
    """
    csv.field_size_limit(_MOST_FIELD)
    reader: _Rows | None = _Rows(table, skipped)
    rows = csv.reader(lines)
    try:
        for number, row in enumerate(rows):
            if number >= MOST_ROWS:
                raise LaunchesRefused(f"expected at most {MOST_ROWS:,} rows")
            if not row:
                reader = None
            elif reader is not None:
                if (launch := reader.read(row)) is not None:
                    yield launch
            elif below := _known(row):
                reader = _Rows(below, skipped)
            elif len(row) >= _FEWEST_HEADS:
                skipped[Skip.NO_TABLE] += 1
    except csv.Error as error:
        raise LaunchesRefused(f"row {rows.line_num:,} of the table: {error}") from None


class _Rows:
    def __init__(self, table: CsvTable, skipped: Counter[Skip]) -> None:
        self._form, self._skipped = table.form, skipped
        heads = [_bare(head) for head in table.heads]
        self._columns = len(heads)
        self._name = heads.index(self._form.name)
        self._times = [heads.index(column) for column in self._form.time]
        self._count = heads.index(self._form.count) if self._form.count else None
        unit = _UNIT.search(table.heads[self._times[-1]])
        self._factor = _UNITS.get(unit.group(1) if unit else self._form.unit or "", 0)
        self._metric = heads.index("Metric Name") if "Metric Name" in heads else None
        self._unit = heads.index("Metric Unit") if "Metric Unit" in heads else None
        self._type = heads.index("Type") if "Type" in heads else None

    def read(self, row: Sequence[str]) -> Launch | None:
        """Give the launches of a row; None where it holds none, counted where it should."""
        if len(row) != self._columns:
            self._skipped[Skip.COLUMNS] += 1
            return None
        if not self._factor and not row[self._name].strip():
            self._factor = _UNITS.get(row[self._times[-1]].strip(), 0)
            return None
        if self._metric is not None and row[self._metric] not in _LONG_METRICS:
            return None
        if self._type is not None and row[self._type].strip() == "API calls":  # of the host
            return None
        name, time_ns, count = row[self._name].strip(), self._time(row), self._launches(row)
        limit = launch.LONGEST_NS if self._count is None else launch.MOST_TOTAL_NS
        if not name:
            self._skipped[Skip.NO_NAME] += 1
        elif time_ns is None:
            self._skipped[Skip.NO_TIME] += 1
        elif not 0 <= time_ns <= limit:
            self._skipped[Skip.TOO_LONG] += 1
        elif count is None:
            self._skipped[Skip.NO_COUNT] += 1
        else:
            return Launch(name[:LONGEST_NAME], count, time_ns)
        return None

    def _time(self, row: Sequence[str]) -> int | None:
        unit = None if self._unit is None else row[self._unit].strip()
        factor = self._factor if unit is None else _UNITS.get(unit, 0)
        values = [_number(row[place]) for place in self._times]
        found = [round(value * factor) for value in values if value is not None]
        if not factor or len(found) < len(values):
            return None
        return found[-1] - found[0] if len(found) == 2 else found[0]

    def _launches(self, row: Sequence[str]) -> int | None:
        if self._count is None:
            return 1
        value = _number(row[self._count])
        return int(value) if value is not None and value >= 1 else None


def _known(heads: Sequence[str]) -> CsvTable | None:
    """Take fields for the head of a table where they have all columns of a form."""
    bare = set(map(_bare, heads))
    for form in _FORMS:
        if {form.name, *form.time, *([form.count] if form.count else [])} <= bare:
            return CsvTable(form, tuple(heads))
    return None


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _bare(head: str) -> str:
    return _UNIT.sub("", head).strip().lstrip("\ufeff")


def _number(text: str) -> float | int | None:
    """Read a number of at least 0, with commas between thousands or without."""
    text = text.strip()
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.isdigit() else float(text)


MAGIC: Final = b"SQLite format 3\x00"
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_NSYS_NAMES: Final = ("demangledName", "shortName", "mangledName")
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
        with closing(connect_readonly(path, foreign=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            tables = _tables(database)
            if _KERNELS not in tables and _GRAPHS in tables:
                raise LaunchesRefused(
                    f"expected kernels, found launches of graphs alone ({_GRAPHS})",
                    "record with nsys profile --cuda-graph-trace=node",
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
    except (*NO_JSON, ArithmeticError) as error:  # an exponent that no number has
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
