"""Raw history of the last day on this host: what every source handed out, bounded in bytes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from collectors.boot_clock import ClockMap, ClockPoint, boot_id
from collectors.records.activity import KernelActivity
from collectors.records.gpu_calls import GpuCalls
from transport.files.sqlite_file import code_of, connect, transaction
from transport.settings.config import limited

from . import history_tables as layout
from . import local_rows
from .spans import SpanRows, kernel_values, process_time_values, process_values

_NS_PER_S: Final = 1_000_000_000
_FULL_SHARE: Final = 0.8
"""Of the allowed bytes; above it the oldest rows go until 0.7 is left."""
_ROOM_SHARE: Final = 0.7
MOST_NAMES: Final = 50_000
"""Distinct (source, name, key): cgroups and peers of a busy host come and go."""
_NAMES_EVERY_NS: Final = 3600 * _NS_PER_S
_SLICES: Final = 20
_LONGEST_DETAIL: Final = 1_000
_Name = tuple[str, str, str, str]
"""Source, name, key and unit."""
_OF_KERNEL: Final = attrgetter(*(column.name for column in layout.ACTIVITY.columns))


@dataclass(frozen=True, slots=True)
class HistorySection:
    """Raw history on this host: how long, and how many bytes on disk at most."""

    enabled: bool = True
    keep_s: int = limited(86_400, low=60, high=7 * 86_400)
    max_bytes: int = limited(512 << 20, low=layout.LEAST_BYTES)


class RowWriter:
    """Writes rows into a file of the history, or one in memory, and counts what has no place."""

    def __init__(self, db: sqlite3.Connection, boot: str, dropped: Counter[str]) -> None:
        self.db, self.dropped = db, dropped
        self._seq = 0
        self._pending: dict[layout.HistoryTable, list[tuple[Any, ...]]] = {}
        db.execute("INSERT OR IGNORE INTO boot (boot_id) VALUES (?)", (boot,))
        (self.boot,) = db.execute("SELECT id FROM boot WHERE boot_id = ?", (boot,)).fetchone()
        self.names: dict[_Name, int] = {}
        self.read_names()

    def note_clock(self, point: ClockPoint) -> None:
        """Keep how the boot clock maps to the wall clock now."""
        self._seq = max(self._seq, point.unix_ns // 1_000_000)  # apart from an earlier process
        row = (self.boot, point.boottime_ns, point.unix_ns, point.error_ns)
        self.db.execute("INSERT OR REPLACE INTO clock VALUES (?, ?, ?, ?)", row)

    def write(self, rows: Iterable[local_rows.Row]) -> None:
        """Write rows, in one transaction. Raises sqlite3.Error, OverflowError."""
        self._pending = {table: [] for table in layout.TABLES}
        with transaction(self.db):
            for row in rows:
                self._take(row)
            for table, values in self._pending.items():
                self.db.executemany(table.insert, values)
        self._pending = {}

    def _take(self, row: local_rows.Row) -> None:
        match row:
            case local_rows.MetricRow():
                name = row.source, row.name, row.key, row.unit
                self._put(layout.METRIC, row.boottime_ns, name, (row.span_ns, row.value))
            case local_rows.PackedRow():
                self._packed(row)
            case local_rows.RecordRow(source, KernelActivity() as kernel):
                name = source, kernel.kernel[: local_rows.LONGEST_NAME], "", ""
                self._put(
                    layout.ACTIVITY,
                    kernel.boottime_ns,
                    name,
                    layout.ACTIVITY.write(_OF_KERNEL(kernel)),
                )
            case local_rows.EventRow():
                detail = row.detail[:_LONGEST_DETAIL]
                self._put(
                    layout.EVENT, row.boottime_ns, (row.source, row.name, row.key, ""), (detail,)
                )
            case local_rows.RecordRow(source, GpuCalls() as calls):
                self._gpu_calls(source, calls)
            case local_rows.ReportRow():
                values = layout.REPORT.write((row.window_start_s, row.task_id, row.cells))
                self._put(layout.REPORT, row.boottime_ns, (row.source, row.series, "", ""), values)
            case local_rows.ProcessTimeRow():
                values = layout.PROCESS_TIME.write(process_time_values(row.process))
                name = row.source, local_rows.clean_name(row.process.name), "", ""
                self._put(layout.PROCESS_TIME, row.boottime_ns, name, values)
            case local_rows.RecordRow():
                pass

    def _put(
        self, table: layout.HistoryTable, at_ns: int, name: _Name, values: Iterable[Any]
    ) -> None:
        """Add a row to what is written; one whose name finds no place is left out."""
        number = self._name(*name)
        if number is not None:
            seq = () if table is layout.METRIC else (self._next(),)
            self._pending[table].append((self.boot, at_ns, *seq, number, *values))

    def _packed(self, row: local_rows.PackedRow) -> None:
        count, cells = row.values.shape
        if count > layout.MOST_SNAPSHOTS or cells > layout.MOST_CELLS:
            self.dropped["oversized"] += 1
            return
        wanted = [(row.source, cell.name, cell.key, cell.unit) for cell in row.cells]
        names = list(map(self.names.get, wanted))
        if None in names:
            names = [self._name(*key) for key in wanted]
        known = [place for place, name in enumerate(names) if name is not None]
        if not known:
            return
        numbers = np.array([names[place] for place in known], dtype=np.int64)
        values = row.values if len(known) == cells else row.values[:, known]
        self._pending[layout.PACKED].append(
            (self.boot, int(row.boottime_ns[0]), self._next(), layout.pack(numbers), len(known),
             count, row.span_ns, layout.pack(row.boottime_ns), layout.pack(values))
        )  # fmt: skip

    def _gpu_calls(self, source: str, calls: GpuCalls) -> None:
        at_ns, span_ns, names = calls.boottime_ns, calls.span_ns, {}
        for process in calls.processes:
            comm = names[process.process] = local_rows.clean_name(process.identity.name)
            values = layout.PROCESS_CALLS.write(process_values(process, span_ns))
            self._put(layout.PROCESS_CALLS, at_ns, (source, comm, "", ""), values)
        for kernel in calls.kernels:
            whose = names.get(kernel.process, "")
            values = layout.KERNEL_CALLS.write(kernel_values(kernel, whose, span_ns))
            self._put(
                layout.KERNEL_CALLS,
                at_ns,
                (source, local_rows.clean_name(kernel.kernel), "", ""),
                values,
            )

    def _name(self, source: str, name: str, key: str, unit: str) -> int | None:
        wanted = (source, name, key, unit)
        known = self.names.get(wanted)
        if known is not None:
            return known
        if len(self.names) >= MOST_NAMES:
            self.dropped["too_many_names"] += 1
            return None
        insert = "INSERT INTO name (source, name, key, unit) VALUES (?, ?, ?, ?)"
        number = self.db.execute(insert, wanted).lastrowid
        if number is not None:
            self.names[wanted] = number
        return number

    def read_names(self) -> None:
        """Read the names that the file has: a transaction that was undone had added others."""
        try:
            found = self.db.execute("SELECT source, name, key, unit, id FROM name").fetchall()
        except sqlite3.Error:
            found = []
        self.names = {row[:4]: row[4] for row in found}

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def in_memory() -> RowWriter:
    db = connect(Path(":memory:"), 0.0)
    db.executescript(layout.ALL_STATEMENTS)
    return RowWriter(db, "", Counter())


class History:
    """Writes rows; every failure is counted in `dropped` and never reaches the agent's loop."""

    def __init__(
        self, path: Path, limits: HistorySection | None = None, *, boot: Callable[[], str] = boot_id
    ) -> None:
        """Open or make the file. Raises HistoryUnavailable."""
        self.path = path
        self.dropped: Counter[str] = Counter()
        self.kept = 0
        self._limits = limits or HistorySection()
        self._spans = SpanRows()
        self._names_at_ns = 0
        self._db = layout.open_file(path, self._limits.max_bytes)
        try:
            self._writer = RowWriter(self._db, boot(), self.dropped)
            found = self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self._tables = [name for (name,) in found if name in layout.ALL_TABLES]
        except sqlite3.Error as error:
            self._db.close()
            raise layout.HistoryUnavailable(f"{path}: {error}") from None

    def note_clock(self, point: ClockPoint) -> None:
        """Keep how the boot clock maps to the wall clock now; once a minute is enough."""
        self._guarded(1, lambda: self._writer.note_clock(point))

    def add(self, rows: Iterable[local_rows.Row]) -> None:
        """Keep rows, in one transaction; of GPU calls and GPU time ten seconds as one."""
        self._keep(list(self._spans.rows(rows)))
        self.dropped.update(self._spans.dropped)
        self._spans.dropped.clear()

    def _keep(self, pending: list[local_rows.Row]) -> None:
        if not pending:
            return
        if layout.wal_bytes(self.path) > layout.wal_limit(self._limits.max_bytes):
            self._checkpoint()
            if layout.wal_bytes(self.path) > layout.wal_limit(self._limits.max_bytes):
                self.dropped["reader_in_the_way"] += len(pending)
                return
        if self._guarded(len(pending), lambda: self._writer.write(pending)):
            self.kept += len(pending)

    def trim(self, now: ClockPoint) -> None:
        """Drop what is too old and, where the file is full, the oldest of the rest."""
        self._guarded(0, lambda: self._trim(now))

    def close(self) -> None:
        """Let the file go; its log is folded in, so that one 0600 file stays."""
        self._keep([*self._spans.rest()])
        self._checkpoint()
        self._db.close()

    def _guarded(self, rows: int, work: Callable[[], object]) -> bool:
        for last in (False, True):
            try:
                work()
            except sqlite3.OperationalError as error:
                full = code_of(error) == sqlite3.SQLITE_FULL
                self._writer.read_names()  # what the undone transaction had added is gone
                if full and not last and self._make_room():
                    continue
                self.dropped["full" if full else "busy"] += rows
                return False
            except (sqlite3.Error, OverflowError):
                self._writer.read_names()
                self.dropped["failed"] += rows
                return False
            return True
        return False

    # Making room --------------------------------------------------------------------------------

    def _trim(self, now: ClockPoint) -> None:
        oldest_unix_ns = now.unix_ns - self._limits.keep_s * _NS_PER_S
        for (boot,) in self._db.execute("SELECT id FROM boot").fetchall():
            if boot == self._writer.boot:
                before_ns = now.boottime_ns - self._limits.keep_s * _NS_PER_S
            else:
                before_ns = self._boottime_of(boot, oldest_unix_ns)
            self._drop(boot, before_ns)
        if layout.used_bytes(self._db) > _FULL_SHARE * self._limits.max_bytes:
            self._make_room()
        if len(self._writer.names) > MOST_NAMES // 2 and now.boottime_ns >= self._names_at_ns:
            self._names_at_ns = now.boottime_ns + _NAMES_EVERY_NS
            self._forget_names()

    def _boottime_of(self, boot: int, unix_ns: int) -> int:
        """Map a Unix time to an earlier boot's clock by that boot's last point."""
        point = self._db.execute(
            "SELECT at_ns, unix_ns, error_ns FROM clock WHERE boot = ? ORDER BY at_ns DESC LIMIT 1",
            (boot,),
        ).fetchone()
        if point is None:
            return 1 << 62  # nothing says when it was
        return ClockMap([ClockPoint(*point)]).boottime_range(unix_ns, None)[0]

    def _make_room(self) -> bool:
        """Drop the oldest rows, a slice of time at a time; tell whether anything went."""
        gone = False
        for _ in range(10 * _SLICES):
            if layout.used_bytes(self._db) <= _ROOM_SHARE * self._limits.max_bytes:
                break
            found = self._oldest()
            if found is None:
                break
            boot, oldest_ns, newest_ns = found
            self._drop(boot, oldest_ns + (newest_ns - oldest_ns) // _SLICES + 1)
            gone = True
        return gone

    def _oldest(self) -> tuple[int, int, int] | None:
        """Give (boot, oldest, newest boot time) of the oldest boot with rows."""
        for (boot,) in self._db.execute("SELECT id FROM boot ORDER BY id").fetchall():
            times = [
                time
                for table in self._tables
                for time in self._db.execute(
                    f"SELECT min(at_ns), max(at_ns) FROM {table} WHERE boot = ?",  # noqa: S608
                    (boot,),
                ).fetchone()
                if time is not None
            ]
            if times:
                return boot, min(times), max(times)
        return None

    def _drop(self, boot: int, before_ns: int) -> None:
        """Drop a boot's rows before a time; the newest earlier clock point stays."""
        with transaction(self._db):
            for table in self._tables:
                self._db.execute(
                    f"DELETE FROM {table} WHERE boot = ? AND at_ns < ?",  # noqa: S608
                    (boot, before_ns),
                )
            self._db.execute(
                "DELETE FROM clock WHERE boot = ?1 AND at_ns < "
                "(SELECT max(at_ns) FROM clock WHERE boot = ?1 AND at_ns < ?2)",
                (boot, before_ns),
            )

    def _forget_names(self) -> None:
        """Forget names that no row refers to; a whole scan, so once an hour and when many."""
        used = {
            number
            for table in self._tables
            if table != layout.PACKED.name
            for (number,) in self._db.execute(f"SELECT DISTINCT name FROM {table}")  # noqa: S608
        }
        for names, cells in self._db.execute("SELECT DISTINCT names, cells FROM packed"):
            used.update(layout.unpack(names, cells, 1)[:, 0].tolist())
        unused = [(number,) for number in self._writer.names.values() if number not in used]
        with transaction(self._db):
            self._db.executemany("DELETE FROM name WHERE id = ?", unused)
        self._writer.names = {
            n: number for n, number in self._writer.names.items() if number in used
        }

    def _checkpoint(self) -> None:
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            self.dropped["checkpoint_failed"] += 1
