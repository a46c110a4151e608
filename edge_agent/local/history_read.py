"""Read the local history: rows of a span on Unix time, with the error of their times."""

from __future__ import annotations

import fnmatch
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collectors.boot_clock import ClockPoint
from transport.closing import Closing

from .clock_map import ClockMap
from .history_calls import DETAILS, KERNEL_COLUMNS, PROCESS_COLUMNS
from .history_db import HistoryUnavailable, open_readonly
from .history_tables import TABLES
from .packing import unpack

KINDS: Final = ("metric", "activity", "event", "kernel", "process")
_PAGE: Final = 5_000
"""Rows per read transaction: a reader that stays long keeps the writer's log from shrinking."""
_LONGEST_RECORD_NS: Final = 60_000_000_000
"""Snapshots of one record lie within it."""

_Names = dict[int, tuple[str, str, str, str]]

_ACTIVITY: Final = (
    "gpu", "family", "application", "count", "gpu_time_ns", "sampling_rate_millionths", "span_ns",
    "log2_bins", "copy_log2_bins",
)  # fmt: skip
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "metric": ("source", "name", "key", "unit", "span_ns", "value"),
    "activity": ("source", "name", *_ACTIVITY),
    "event": ("source", "name", "key", "detail"),
    "kernel": ("source", "name", *KERNEL_COLUMNS),
    "process": ("source", "name", *PROCESS_COLUMNS),
}
"""Columns of each kind of row after the time: unix_ns, unix_error_ns, boot_id, boottime_ns."""


@dataclass(frozen=True, slots=True)
class _Boot:
    number: int
    boot_id: str
    clock: ClockMap
    low_ns: int
    high_ns: int


class HistoryReader(Closing):
    """Reads beside a running agent."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises HistoryUnavailable."""
        self._path = path
        self._db = open_readonly(path)
        found = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self._tables = {name for (name,) in found}  # an older agent's file lacks the latest

    def rows(
        self,
        kind: str,
        since_ns: int | None = None,
        until_ns: int | None = None,
        name: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Give the rows of a kind in [since, until) of Unix time, boot by boot.

        Each boot's rows are in the order of time; packed snapshots follow record by record.
        name        a pattern (`host_*`) that the name must match; None: all
        Raises      HistoryUnavailable; ValueError for another kind
        """
        readers = {
            "metric": self._metric, "activity": self._activity, "event": self._event,
            "kernel": self._kernel, "process": self._process,
        }  # fmt: skip
        if kind not in readers:
            raise ValueError(f"expected one of {', '.join(KINDS)}, got {kind!r}")
        try:
            for boot in self._boots(since_ns, until_ns):
                for row in readers[kind](boot, self._names(name)):
                    at_ns = row.pop("boottime_ns")
                    unix_ns, error_ns = boot.clock.unix_ns(at_ns)
                    early = since_ns is not None and unix_ns < since_ns
                    if early or (until_ns is not None and unix_ns >= until_ns):
                        continue
                    when = {"unix_ns": unix_ns, "unix_error_ns": error_ns}
                    yield {**when, "boot_id": boot.boot_id, "boottime_ns": at_ns, **row}
        except (sqlite3.Error, ValueError) as error:
            raise HistoryUnavailable(f"{self._path}: {error}") from None

    def span(self) -> tuple[int, int] | None:
        """Give the first and last Unix time that rows have, None for an empty history."""
        times: list[int] = []
        try:
            for boot in self._boots(None, None):
                for table in (one for one in TABLES if one.name in self._tables):
                    found = self._db.execute(
                        f"SELECT min(at_ns), max(at_ns) FROM {table.name} WHERE boot = ?",  # noqa: S608
                        (boot.number,),
                    ).fetchone()
                    times += [boot.clock.unix_ns(t)[0] for t in found if t is not None]
        except sqlite3.Error as error:
            raise HistoryUnavailable(f"{self._path}: {error}") from None
        return (min(times), max(times)) if times else None

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def _boots(self, since_ns: int | None, until_ns: int | None) -> Iterator[_Boot]:
        for number, boot in self._db.execute("SELECT id, boot_id FROM boot ORDER BY id").fetchall():
            points = self._db.execute(
                "SELECT at_ns, unix_ns, error_ns FROM clock WHERE boot = ?", (number,)
            ).fetchall()
            if points:
                clock = ClockMap([ClockPoint(*point) for point in points])
                low_ns, high_ns = clock.boottime_range(since_ns, until_ns)
                yield _Boot(number, boot, clock, low_ns - _LONGEST_RECORD_NS, high_ns)

    def _pages(self, boot: _Boot, table: str, columns: str, key: str) -> Iterator[tuple[Any, ...]]:
        """Read a table in pages; at_ns and the key come before the columns."""
        at_ns, last = boot.low_ns, -1
        while table in self._tables:
            page = self._db.execute(
                f"SELECT t.at_ns, t.{key}, {columns} FROM {table} t "  # noqa: S608
                f"WHERE t.boot = ? AND (t.at_ns, t.{key}) > (?, ?) AND t.at_ns <= ? "
                f"ORDER BY t.at_ns, t.{key} LIMIT {_PAGE}",
                (boot.number, at_ns, last, boot.high_ns),
            ).fetchall()
            yield from page
            if len(page) < _PAGE:
                return
            at_ns, last = page[-1][:2]

    def _names(self, pattern: str | None) -> _Names:
        found = self._db.execute("SELECT id, source, name, key, unit FROM name").fetchall()
        wanted = "*" if pattern is None else pattern
        return {row[0]: row[1:] for row in found if fnmatch.fnmatchcase(row[2], wanted)}

    def _metric(self, boot: _Boot, names: _Names) -> Iterator[dict[str, Any]]:
        for at_ns, name, span_ns, value in self._pages(boot, "metric", "span_ns, value", "name"):
            if name in names:
                yield _metric_row(at_ns, names[name], span_ns, value)
        columns = "names, cells, count, span_ns, times, totals"
        for _, _, listed, cells, count, span_ns, times, totals in self._pages(
            boot, "packed", columns, "seq"
        ):
            numbers = unpack(listed, cells, 1)[:, 0].tolist()
            if not any(number in names for number in numbers):
                continue
            at = unpack(times, count, 1)[:, 0].tolist()
            series = unpack(totals, count, cells).T.tolist()
            for number, values in zip(numbers, series, strict=True):
                if number in names:
                    for at_ns, value in zip(at, values, strict=True):
                        yield _metric_row(at_ns, names[number], span_ns, float(value))

    def _activity(self, boot: _Boot, names: _Names) -> Iterator[dict[str, Any]]:
        columns = f"name, {', '.join(_ACTIVITY)}"
        for at_ns, _, number, *values in self._pages(boot, "activity", columns, "seq"):
            if number in names:
                source, kernel, _, _ = names[number]
                row = dict(zip(_ACTIVITY, values, strict=True))
                for bins in ("log2_bins", "copy_log2_bins"):
                    row[bins] = json.loads(row[bins])
                yield {"boottime_ns": at_ns, "source": source, "name": kernel, **row}

    def _event(self, boot: _Boot, names: _Names) -> Iterator[dict[str, Any]]:
        for at_ns, _, number, detail in self._pages(boot, "event", "name, detail", "seq"):
            if number in names:
                source, name, key, _ = names[number]
                when = {"boottime_ns": at_ns, "source": source}
                yield {**when, "name": name, "key": key, "detail": detail}

    def _kernel(self, boot: _Boot, names: _Names) -> Iterator[dict[str, Any]]:
        return self._calls(boot, names, "kernel_calls", KERNEL_COLUMNS)

    def _process(self, boot: _Boot, names: _Names) -> Iterator[dict[str, Any]]:
        for row in self._calls(boot, names, "process_calls", PROCESS_COLUMNS):
            yield row | {name: json.loads(row[name]) for name in DETAILS}

    def _calls(
        self, boot: _Boot, names: _Names, table: str, columns: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        listed = f"name, {', '.join(columns)}"
        for at_ns, _, number, *values in self._pages(boot, table, listed, "seq"):
            if number in names:
                source, name, _, _ = names[number]
                row = dict(zip(columns, values, strict=True))
                yield {"boottime_ns": at_ns, "source": source, "name": name, **row}


def _metric_row(
    at_ns: int, name: tuple[str, str, str, str], span_ns: int, value: float
) -> dict[str, Any]:
    source, metric, key, unit = name
    return {"boottime_ns": at_ns, "source": source, "name": metric, "key": key, "unit": unit,
            "span_ns": span_ns, "value": value}  # fmt: skip
