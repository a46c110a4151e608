"""Launches of kernels from the CSV tables of profilers: which columns mean what is data."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from transport.process.printable import listed

from .launch import (
    LONGEST_NAME,
    LONGEST_NS,
    MOST_ROWS,
    MOST_TOTAL_NS,
    Launch,
    LaunchesRefused,
    Skip,
)

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
    """Refuse a table whose columns are none of those known.

    Raises      LaunchesRefused
    """
    rows = [_fields(line) for line in islice(lines, _MOST_BEFORE) if line.strip()]
    for head, below in pairwise(rows):
        balanced = all(map(_is_balanced, head))
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
    """Reads the rows of one table."""

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
        if self._of_something_else(row):
            return None
        name, time_ns, count = row[self._name].strip(), self._time(row), self._launches(row)
        limit = LONGEST_NS if self._count is None else MOST_TOTAL_NS
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

    def _of_something_else(self, row: Sequence[str]) -> bool:
        """Whether a row is of another metric, or of calls of the host."""
        if self._metric is not None and row[self._metric] not in _LONG_METRICS:
            return True
        return self._type is not None and row[self._type].strip() == "API calls"

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


def _is_balanced(field: str) -> bool:
    """Whether brackets close: those of a kernel's name, cut at commas, do not."""
    return all(field.count(a) == field.count(b) for a, b in ("()", "<>"))


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
