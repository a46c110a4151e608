"""Tables that profilers write as CSV: the forms that are known, as data, and their reader."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from transport.process.printable import listed

from . import launch
from .launch import LONGEST_NAME, MOST_ROWS, Launch, LaunchesRefused, Skip

_UNITS: Final = {
    "ns": 1, "nsec": 1, "nsecond": 1, "us": 1_000, "usec": 1_000, "usecond": 1_000,
    "\u00b5s": 1_000, "\u03bcs": 1_000, "ms": 1_000_000, "msec": 1_000_000, "msecond": 1_000_000,
    "s": 10**9, "sec": 10**9, "second": 10**9,
}  # fmt: skip
_UNIT: Final = re.compile(r"\((\w{1,8})\)")
_MOST_BEFORE: Final = 1_000
"""Lines that a profiler may print before its table."""
_MOST_FIELD: Final = 1 << 20
_FEWEST_HEADS: Final = 3
_DELIMITERS: Final = (",", ";", "\t")
_LONG_METRICS: Final = frozenset({"gpu__time_duration.sum", "Duration"})
_NO_NUMBERS: Final = frozenset({"CC"})
"""Heads of columns that hold versions, whose point is no decimal sign."""
_HOST: Final = re.compile(
    r"(?:cuda|cu|(?:__)?hip|roctx|nvtx)[A-Z]\w*|hsa_\w+|(?:nccl|rccl)(?!Kernel|Dev)[A-Z]\w*"
    r"|KERNEL_DISPATCH|MEMORY_(?:COPY|ALLOCATION)|SCRATCH_MEMORY|[A-Z_]+_API"
)
"""Functions of a host, and what rocprofv3 sums up by."""
_RULE: Final = re.compile(r"[\s|+]*[-=_]{3,}[-=_\s|+]*")
_RUNS: Final = re.compile(r"\s{2,}|\s*\|\s*")


@dataclass(frozen=True, slots=True)
class TableForm:
    """One profiler's table; a column is named as its head begins, without the unit.

    time        the column of the time; of two, the second less the first
    count       None: a row is one launch
    unit        of the time where neither its head nor a row below tells one; None: one must
    beside      other heads that must be there
    without     heads that must not: of ranges, of messages, of rows that tell a launch again
    left_out    a column, and what it holds in rows of the host
    mean        the time is that of one launch of the row's
    host_names  tables of host calls have the same heads: names tell them
    round       numbers have two decimals or none, so that three digits are thousands
    """

    form: str
    name: str
    time: tuple[str, ...]
    count: str | None = None
    unit: str | None = "ns"
    beside: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    left_out: tuple[str, str] = ("", "")
    mean: bool = False
    host_names: bool = False
    round: bool = False


_NSYS, _NSYS_TRACE = "an Nsight Systems summary (CSV)", "an Nsight Systems trace (CSV)"
_NCU, _ROCPROF = "an Nsight Compute report (CSV)", "a rocprofv3 trace (CSV)"
_CLOCKED: Final = ("Start_Timestamp", "End_Timestamp")
_METRIC: Final = ("Metric Name", "Metric Unit")
FORMS: Final = (
    TableForm(
        _NSYS, "Name", ("Total Time",), "Instances", without=("Source", "Style", "NVTX Range")
    ),
    TableForm(_NSYS, "Operation", ("Total Time",), "Count"),
    TableForm(_NSYS, "Operation", ("Total Time",), "Operations"),
    TableForm(
        _NSYS, "Operation", ("Total Time",), "Instances",
        left_out=("Category", "CUDA_API"),
    ),
    TableForm(
        "an nvprof trace (CSV)", "Name", ("Duration",), unit=None, beside=("Device", "Context")
    ),
    TableForm(_NSYS_TRACE, "Name", ("Duration",), beside=("Device",)),
    TableForm(_NSYS_TRACE, "Kernel Name", ("Kernel Dur",)),
    TableForm(_NCU, "Kernel Name", ("gpu__time_duration.sum",), unit=None, round=True),
    TableForm(_NCU, "Kernel Name", ("Metric Value",), beside=_METRIC, round=True),
    TableForm(
        _NCU, "Kernel Name", ("Average",), "Invocations", beside=_METRIC, mean=True, round=True
    ),
    TableForm(
        "rocprofv3 statistics (CSV)", "Name", ("TotalDurationNs",), "Calls", host_names=True
    ),
    TableForm(_ROCPROF, "Kernel_Name", _CLOCKED, without=("Counter_Name",)),
    TableForm(_ROCPROF, "Direction", _CLOCKED),
    TableForm("a rocprof trace (CSV)", "KernelName", ("BeginNs", "EndNs")),
    TableForm("a rocprof trace (CSV)", "KernelName", ("DurationNs",)),
    TableForm("a rocprof-compute summary (CSV)", "Kernel_Name", ("Sum",), "Count"),
    TableForm(
        "an nvprof summary (CSV)", "Name", ("Time",), "Calls", unit=None,
        left_out=("Type", "API calls"), host_names=True,
    ),
    TableForm(
        "a TensorBoard kernel table (CSV)", "Name", ("Total Duration",), "Calls",
        beside=("Tensor Cores Used",),
    ),
)  # fmt: skip

EXPORTS: Final = (
    "nsys stats --report cuda_gpu_kern_sum --format csv, ncu --csv --page raw, or "
    "rocprofv3 --kernel-trace --output-format csv"
)


class _Numbers:
    """Reads numbers of at least 0; a table's decimal sign is what its columns show."""

    def __init__(self, delimiter: str, form: TableForm) -> None:
        self._usual = "," if delimiter == ";" else "."
        self._told = delimiter != ";" and not form.round
        self.sign = ""

    def learn(self, fields: Iterable[str]) -> None:
        """Look for a decimal sign. Raises LaunchesRefused where there are two."""
        for sign in set(map(_sign_of, fields)) - {""}:
            if self.sign not in {"", sign}:
                raise LaunchesRefused(
                    "expected one decimal sign, found numbers with a point and with a comma"
                )
            self.sign = sign

    def read(self, text: str) -> float | int | None:
        text = text.strip()
        sign = self.sign
        if not sign and "." in text and not self._told and _WHOLE["."].fullmatch(text):
            raise LaunchesRefused(
                f"cannot tell whether the point in {text} is a decimal sign: no number shows it",
                "write the table where numbers are those of the locale C (LC_ALL=C)",
            )
        sign = sign or self._usual
        if not _WHOLE[sign].fullmatch(text):
            return None
        plain = _APART[sign].sub("", text).replace(",", ".")
        return int(plain) if plain.isdigit() else float(plain)


_SPACES: Final = "'\u2019 \u00a0\u202f"
_WHOLE: Final = {
    sign: re.compile(
        rf"(?:\d{{1,20}}|\d{{1,3}}(?:[{other}{_SPACES}]\d{{3}}){{1,6}})"
        rf"(?:[{sign}]\d{{0,20}})?(?:[eE][+-]?\d{{1,2}})?",
        re.ASCII,
    )
    for sign, other in ((".", ","), (",", "."))
}
_APART: Final = {".": re.compile(f"[,{_SPACES}]"), ",": re.compile(rf"[.{_SPACES}]")}
_THOUSANDS: Final = re.compile(r"-?[1-9]\d{0,2}[.,]\d{3}")


def _sign_of(field: str) -> str:
    """Give the decimal sign that a field shows, "" where it shows none, or is no number."""
    text = field.strip().lstrip("-")
    if not {".", ","} & {*text} or _THOUSANDS.fullmatch(text):
        return ""
    fits = [sign for sign, whole in _WHOLE.items() if whole.fullmatch(text)]
    return fits[0] if len(fits) == 1 else ""


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A table that was found: its form and its heads."""

    form: TableForm
    heads: tuple[str, ...]
    delimiter: str


def find_table(lines: Iterable[str]) -> CsvTable | None:
    """Find the head of a known table among the first lines, reading no farther than needed."""
    for line in islice(lines, _MOST_BEFORE):
        for delimiter in _DELIMITERS:
            if table := _known(_fields(line, delimiter), delimiter):
                return table
    return None


def refuse_other_table(lines: Iterable[str]) -> None:
    """Refuse what has columns, or lines of dashes, and no known heads; raises LaunchesRefused."""
    rows = [line.rstrip("\r\n") for line in islice(lines, _MOST_BEFORE) if line.strip()]
    for heads in (_fields(row, mark) for row in rows for mark in _DELIMITERS):
        if len(heads) >= _FEWEST_HEADS and not _TIMES.isdisjoint(map(_bare, heads)):
            _refuse(heads)
    for head, below in pairwise(rows):
        cuts = [(_fields(head, mark), _fields(below, mark)) for mark in _DELIMITERS]
        cuts.append((_RUNS.split(head.strip()), _RUNS.split(below.strip())))
        for titles, values in cuts:
            # Brackets close: those of a kernel's name, cut at commas, do not.
            balanced = all(f.count(a) == f.count(b) for f in titles for a, b in ("()", "<>"))
            if len(titles) == len(values) >= _FEWEST_HEADS and balanced:
                _refuse(titles)
        if _RULE.fullmatch(below):
            _refuse([head])


def _refuse(titles: Sequence[str]) -> None:
    told = listed([title.strip() for title in titles])
    raise LaunchesRefused(f"expected columns of names and GPU times, got {told}", EXPORTS)


def table_launches(
    lines: Iterable[str], table: CsvTable, skipped: Counter[Skip], ahead: Iterable[str]
) -> Iterator[Launch]:
    """Yield the rows of a table, and of known ones below it; `lines` begin right behind its head.

    A profiler prints several tables below one another: an empty line, or a head, ends each.

    ahead       the first of the lines, to find the decimal sign in
    """
    csv.field_size_limit(_MOST_FIELD)
    first = _Rows(table, skipped)
    for line in ahead:
        first.learn(_fields(line, table.delimiter))
    reader: _Rows | None = first
    rows = csv.reader(lines, delimiter=table.delimiter)
    try:
        for number, row in enumerate(rows):
            if number >= MOST_ROWS:
                raise LaunchesRefused(f"expected at most {MOST_ROWS:,} rows")
            if not row:
                reader = None
            elif reader is not None and not reader.ends_at(row):
                if (found := reader.read(row)) is not None:
                    yield found
            elif below := _known(row, table.delimiter):
                reader = _Rows(below, skipped)
            else:
                reader = None
                skipped[Skip.NO_TABLE] += len(row) >= _FEWEST_HEADS
    except csv.Error as error:
        raise LaunchesRefused(f"row {rows.line_num:,} of the table: {error}") from None


class _Rows:
    def __init__(self, table: CsvTable, skipped: Counter[Skip]) -> None:
        self._form, self._skipped = table.form, skipped
        heads = [_bare(head) for head in table.heads]
        self._name = heads.index(self._form.name)
        self._times = [heads.index(column) for column in self._form.time]
        self._count = heads.index(self._form.count) if self._form.count else None
        unit = _UNIT.search(table.heads[self._times[-1]])
        self._factor = _UNITS.get(unit.group(1) if unit else self._form.unit or "", 0)
        self._metric, self._unit, self._host = (
            heads.index(head) if head in heads else None
            for head in (*_METRIC, self._form.left_out[0])
        )
        needed = (*self._times, self._name, self._count, self._metric, self._unit, self._host)
        self._fewest, self._most = max(place or 0 for place in needed) + 1, len(heads)
        self._measure = ""
        self._numbers = _Numbers(table.delimiter, table.form)
        self._told = [place for place, head in enumerate(heads) if head not in _NO_NUMBERS]

    def learn(self, row: Sequence[str]) -> None:
        """Look for the table's decimal sign in one of its rows."""
        if self._fewest <= len(row) <= self._most:
            self._numbers.learn(row[place] for place in self._told if place < len(row))

    def ends_at(self, row: Sequence[str]) -> bool:
        """Tell whether a row is the head of another table."""
        told = row[self._times[0]] if self._times[0] < len(row) else ""
        return told[:1].isalpha() and not _TIMES.isdisjoint(map(_bare, row))

    def read(self, row: Sequence[str]) -> Launch | None:
        """Give the launches of a row; None where it holds none, counted where it should."""
        if not self._fewest <= len(row) <= self._most:
            self._skipped[Skip.COLUMNS] += 1
            return None
        name = row[self._name].strip()
        if not name and (factor := _UNITS.get(row[self._times[-1]].strip())):
            self._factor = factor
            return None
        if self._is_other(row):
            return None
        if not self._numbers.sign:
            self.learn(row)
        time_ns, count = self._time(row), self._launches(row)
        limit = launch.LONGEST_NS if self._count is None else launch.MOST_TOTAL_NS
        if not name:
            self._skipped[Skip.NO_NAME] += 1
        elif self._form.host_names and _HOST.fullmatch(name):
            self._skipped[Skip.HOST] += 1
        elif time_ns is None:
            self._skipped[Skip.NO_TIME] += 1
        elif not 0 <= time_ns <= limit:
            self._skipped[Skip.TOO_LONG] += 1
        elif count is None:
            self._skipped[Skip.NO_COUNT] += 1
        else:
            whole_ns = time_ns * count if self._form.mean else time_ns
            return Launch(name[:LONGEST_NAME], count, min(whole_ns, launch.MOST_TOTAL_NS))
        return None

    def _is_other(self, row: Sequence[str]) -> bool:
        """Tell rows of the host, of another metric, and of the time told once more."""
        if self._host is not None and row[self._host].strip() == self._form.left_out[1]:
            return True
        if self._metric is None:
            return False
        if row[self._metric] in _LONG_METRICS:
            self._measure = self._measure or row[self._metric]
        return row[self._metric] != self._measure

    def _time(self, row: Sequence[str]) -> int | None:
        unit = None if self._unit is None else row[self._unit].strip()
        factor = self._factor if unit is None else _UNITS.get(unit, 0)
        values = [self._numbers.read(row[place]) for place in self._times]
        found = [round(value * factor) for value in values if value is not None]
        if not factor or len(found) < len(values):
            return None
        return found[-1] - found[0] if len(found) == 2 else found[0]

    def _launches(self, row: Sequence[str]) -> int | None:
        if self._count is None:
            return 1
        value = self._numbers.read(row[self._count])
        return int(value) if value is not None and value >= 1 else None


_TIMES: Final = frozenset(form.time[0] for form in FORMS)


def _known(heads: Sequence[str], delimiter: str) -> CsvTable | None:
    """Take fields for the head of a table where they have all columns of a form."""
    bare = set(map(_bare, heads))
    for form in FORMS:
        needed = {form.name, *form.time, *form.beside, *([form.count] if form.count else [])}
        if needed <= bare and bare.isdisjoint(form.without):
            return CsvTable(form, tuple(heads), delimiter)
    return None


def _fields(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _bare(head: str) -> str:
    return _UNIT.sub("", head).strip()
