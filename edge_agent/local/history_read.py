"""Read the local history: rows of a span on Unix time, with the error of their times."""

from __future__ import annotations

import fnmatch
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collectors.boot_clock import ClockMap, ClockPoint
from transport.process.closing import Closing

from .history_db import HistoryUnavailable, open_readonly
from .history_tables import KINDS, METRIC, PACKED, TABLES, HistoryTable, unpack

_PAGE: Final = 5_000
"""Rows per read transaction: a reader that stays long keeps the writer's log from shrinking."""
_LONGEST_RECORD_NS: Final = 60_000_000_000
"""Snapshots of one record lie within it."""

_Names = dict[int, dict[str, str]]
_Row = tuple[int, dict[str, Any]]
"""Boot time in ns, and the fields."""


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
        found = self._asked("SELECT name FROM sqlite_master WHERE type = 'table'")
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
        if kind not in KINDS:
            raise ValueError(f"expected one of {', '.join(KINDS)}, got {kind!r}")
        try:
            for boot in self._boots(since_ns, until_ns):
                for at_ns, row in self._of_boot(KINDS[kind], boot, self._names(name)):
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
        for boot in self._boots(None, None):
            for name in [table.name for table in TABLES if table.name in self._tables]:
                [found] = self._asked(
                    f"SELECT min(at_ns), max(at_ns) FROM {name} WHERE boot = ?",  # noqa: S608
                    (boot.number,),
                )
                times += [boot.clock.unix_ns(t)[0] for t in found if t is not None]
        return (min(times), max(times)) if times else None

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    def _boots(self, since_ns: int | None, until_ns: int | None) -> Iterator[_Boot]:
        for number, boot in self._asked("SELECT id, boot_id FROM boot ORDER BY id"):
            points = self._asked(
                "SELECT at_ns, unix_ns, error_ns FROM clock WHERE boot = ?", (number,)
            )
            if points:
                clock = ClockMap([ClockPoint(*point) for point in points])
                low_ns, high_ns = clock.boottime_range(since_ns, until_ns)
                yield _Boot(number, boot, clock, low_ns - _LONGEST_RECORD_NS, high_ns)

    def _asked(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise HistoryUnavailable(f"{self._path}: {error}") from None

    def _pages(self, boot: _Boot, table: HistoryTable) -> Iterator[tuple[Any, ...]]:
        """Read a table in pages: at_ns, what tells rows of one time apart, and the columns."""
        at_ns, last, key = boot.low_ns, -1, table.key[0]
        while table.name in self._tables:
            page = self._db.execute(
                f"SELECT at_ns, {key}, {table.select} FROM {table.name} "  # noqa: S608
                f"WHERE boot = ? AND (at_ns, {key}) > (?, ?) AND at_ns <= ? "
                f"ORDER BY at_ns, {key} LIMIT {_PAGE}",
                (boot.number, at_ns, last, boot.high_ns),
            ).fetchall()
            yield from page
            if len(page) < _PAGE:
                return
            at_ns, last = page[-1][:2]

    def _names(self, pattern: str | None) -> _Names:
        found = self._db.execute("SELECT id, source, name, key, unit FROM name").fetchall()
        wanted = "*" if pattern is None else pattern
        return {
            number: {"source": source, "name": name, "key": key, "unit": unit}
            for number, source, name, key, unit in found
            if fnmatch.fnmatchcase(name, wanted)
        }

    def _of_boot(self, table: HistoryTable, boot: _Boot, names: _Names) -> Iterator[_Row]:
        heads = {
            number: {part: name[part] for part in table.named} for number, name in names.items()
        }
        fields = [column.name for column in table.columns]
        lists = [fields[place] for place in table.lists]
        for at_ns, _, number, *values in self._pages(boot, table):
            if number in heads:
                row = heads[number] | dict(zip(fields, values, strict=True))
                yield at_ns, row | {name: json.loads(row[name]) for name in lists}
        if table is METRIC:
            yield from self._packed(boot, heads)

    def _packed(self, boot: _Boot, names: _Names) -> Iterator[_Row]:
        for _, _, listed, cells, count, span_ns, times, totals in self._pages(boot, PACKED):
            numbers = unpack(listed, cells, 1)[:, 0].tolist()
            if not any(number in names for number in numbers):
                continue
            at = unpack(times, count, 1)[:, 0].tolist()
            series = unpack(totals, count, cells).T.tolist()
            for number, values in zip(numbers, series, strict=True):
                if number in names:
                    for at_ns, value in zip(at, values, strict=True):
                        yield at_ns, names[number] | {"span_ns": span_ns, "value": float(value)}
