"""Read the local history: rows of a span on Unix time, with the error of their times."""

from __future__ import annotations

import fnmatch
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Final

from collectors.boot_clock import ClockMap, ClockPoint
from collectors.records.basics import NORMAL
from transport.process.supervision import Closing

from . import history_tables as layout

_PAGE: Final = 5_000
"""Rows per read transaction: a reader that stays long keeps the writer's log from shrinking."""
LONGEST_RECORD_NS: Final = 60_000_000_000
"""Snapshots of one record lie within it."""

_Names = dict[int, dict[str, str]]
_Row = tuple[int, dict[str, Any]]
"""Boot time in ns, and the fields."""


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot in a span, with the boot times that hold it."""

    number: int
    boot_id: str
    clock: ClockMap
    low_ns: int
    high_ns: int


class HistoryReader(Closing):
    """Reads beside a running agent."""

    def __init__(self, file: Path | sqlite3.Connection) -> None:
        """Open a file, or read what is in memory. Raises HistoryUnavailable."""
        self._path = file if isinstance(file, Path) else "memory"
        self._db = layout.open_readonly(file) if isinstance(file, Path) else file
        self._db.create_function("root", 1, _root, deterministic=True)
        found = self._asked("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {name for (name,) in found}  # an older agent's file lacks the latest

    def rows(
        self,
        kind: str,
        since_ns: int | None = None,
        until_ns: int | None = None,
        name: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Give a kind's rows in [since, until) of Unix time, by boot, whose name fits a pattern.
        Packed snapshots follow record by record.
        Raises      HistoryUnavailable; ValueError for another kind
        """
        if kind not in layout.KINDS:
            raise ValueError(f"expected one of {', '.join(layout.KINDS)}, got {kind!r}")
        try:
            for boot in self._boots(since_ns, until_ns):
                for at_ns, row in self._of_boot(layout.KINDS[kind], boot, self.names(name)):
                    unix_ns, error_ns = boot.clock.unix_ns(at_ns)
                    early = since_ns is not None and unix_ns < since_ns
                    if early or (until_ns is not None and unix_ns >= until_ns):
                        continue
                    when = {"unix_ns": unix_ns, "unix_error_ns": error_ns}
                    yield {**when, "boot_id": boot.boot_id, "boottime_ns": at_ns, **row}
        except (sqlite3.Error, ValueError) as error:
            raise layout.HistoryUnavailable(f"{self._path}: {error}") from None

    def span(self) -> tuple[int, int] | None:
        """Give the first and last Unix time that rows have, None for an empty history."""
        times: list[int] = []
        for boot in self._boots(None, None):
            for name in [
                part.name for table in layout.TABLES for part in table.parts(self._tables)
            ]:
                [found] = self._asked(
                    f"SELECT min(at_ns), max(at_ns) FROM {name} WHERE boot = ?",  # noqa: S608
                    (boot.number,),
                )
                times += [boot.clock.unix_ns(t)[0] for t in found if t is not None]
        return (min(times), max(times)) if times else None

    def close(self) -> None:
        self._db.close()

    def _boots(self, since_ns: int | None, until_ns: int | None) -> Iterator[Boot]:
        for number, boot in self._asked("SELECT id, boot_id FROM boot ORDER BY id"):
            points = self._asked(
                "SELECT at_ns, unix_ns, error_ns FROM clock WHERE boot = ?", (number,)
            )
            if points:
                clock = ClockMap([ClockPoint(*point) for point in points])
                low_ns, high_ns = clock.boottime_range(since_ns, until_ns)
                yield Boot(number, boot, clock, low_ns - LONGEST_RECORD_NS, high_ns)

    def _asked(
        self, query: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise layout.HistoryUnavailable(f"{self._path}: {error}") from None

    def _pages(self, boot: Boot, table: layout.HistoryTable) -> Iterator[tuple[Any, ...]]:
        """Read a table in pages: at_ns, what tells rows of one time apart, and the columns."""
        for part in table.parts(self._tables):
            at_ns, last, key = boot.low_ns, -1, part.key[0]
            while True:
                page = self._db.execute(
                    f"SELECT at_ns, {key}, {part.select} FROM {part.name} "  # noqa: S608
                    f"WHERE boot = ? AND (at_ns, {key}) > (?, ?) AND at_ns <= ? "
                    f"ORDER BY at_ns, {key} LIMIT {_PAGE}",
                    (boot.number, at_ns, last, boot.high_ns),
                ).fetchall()
                yield from page
                if len(page) < _PAGE:
                    break
                at_ns, last = page[-1][:2]

    def names(self, pattern: str | None) -> _Names:
        """Give the parts of the names that a pattern matches, by number."""
        found = self._db.execute("SELECT id, source, name, key, unit FROM name").fetchall()
        wanted = "*" if pattern is None else pattern
        return {
            number: {"source": source, "name": name, "key": key, "unit": unit}
            for number, source, name, key, unit in found
            if fnmatch.fnmatchcase(name, wanted)
        }

    def _of_boot(self, table: layout.HistoryTable, boot: Boot, names: _Names) -> Iterator[_Row]:
        heads = {
            number: {part: name[part] for part in table.named} for number, name in names.items()
        }
        fields = [column.name for column in table.columns]
        lists = [fields[place] for place in table.lists]
        for at_ns, _, number, *values in self._pages(boot, table):
            if number in heads:
                row = heads[number] | dict(zip(fields, values, strict=True))
                yield at_ns, row | {name: _members(row[name]) for name in lists}
        if table is layout.METRIC:
            yield from self._packed(boot, heads)

    def _packed(self, boot: Boot, names: _Names) -> Iterator[_Row]:
        for _, _, listed, cells, count, span_ns, times, totals in self._pages(boot, layout.PACKED):
            numbers = layout.unpack(listed, cells, 1)[:, 0].tolist()
            if not any(number in names for number in numbers):
                continue
            at = layout.unpack(times, count, 1)[:, 0].tolist()
            series = layout.unpack(totals, count, cells).T.tolist()
            for number, values in zip(numbers, series, strict=True):
                if number in names:
                    for at_ns, value in zip(at, values, strict=True):
                        yield at_ns, names[number] | {"span_ns": span_ns, "value": float(value)}


def _root(value: float | None) -> float | None:
    return None if value is None else sqrt(value)


def _members(text: str) -> list[Any]:
    """Read a list; counts of an older version have one variance, which becomes a bound."""
    members: list[Any] = json.loads(text)
    for member in members:
        if isinstance(member, dict) and "seen" in member and "below" not in member:
            bound = _root(member["variance"])
            bound = None if bound is None else NORMAL * bound
            known = None if bound is None else 0.0
            member |= {"variance": known, "below": bound, "above": bound}
    return members
