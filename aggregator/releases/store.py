"""The Leader's releases: a DuckDB file that only its process opens, and Parquet for everyone else.

A release is one DuckDB transaction, then one Parquet file that appears whole under its final name,
and where it counts causes a second one with their table. A crash in between leaves a release
without its files; the next start writes what is missing. Closed days go from these files into packs
(`compaction.py`); what a pack has, the DuckDB file lets go of, so it holds about two days.
Writing a release again changes nothing, and another vector under the same key is refused: a release
is final.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from aggregator.protocol.released import PublishedWindow, ReleasedWindow, SuppressedWindow
from aggregator.state.state_file import StorageUnavailable
from aggregator.statistics.causes import CAUSE_SECTIONS, CauseTable
from aggregator.statistics.correction import Detector
from aggregator.statistics.statistics import Cell, estimate
from transport.process.supervision import Closing
from wire.catalogue import Catalogue

from . import release_files
from .cause_files import FOLDER as CAUSES_FOLDER
from .cause_files import RELEASED_COLUMNS, Record, cause_columns, cause_path, tables_of
from .coarsening import CauseTables
from .compaction import NO_ROLL_UPS, Compacted, Compaction, CompactionUnderWay, RollUps
from .exact_counts import coarse_hosts_sql, coarse_releases_sql
from .packs import DAY_S, is_packed, mark_new
from .release_files import (
    SUPPRESSED_SCHEMA,
    public_folder,
    release_path,
    release_rows,
    utc,
    write_whole,
)
from .releases import QueryRefused, open_duckdb, read_releases

EVERY_S: Final = 3600

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS windows (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, digest BLOB NOT NULL,
    PRIMARY KEY (series, cohort, window_start)
);
CREATE TABLE IF NOT EXISTS cells (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, window_s INTEGER,
    section VARCHAR, cell VARCHAR,
    unit VARCHAR, kind VARCHAR, value DOUBLE, standard_error DOUBLE, low DOUBLE, high DOUBLE,
    share DOUBLE, share_low DOUBLE, share_high DOUBLE, below_noise BOOLEAN,
    bias_bound DOUBLE, n_hosts INTEGER, n_bound INTEGER,
    epsilon DOUBLE, delta DOUBLE, domain VARCHAR, released_at TIMESTAMP, rejections VARCHAR,
    PRIMARY KEY (series, cohort, window_start, section, cell)
);
CREATE TABLE IF NOT EXISTS suppressed (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, window_s INTEGER, version INTEGER,
    reason VARCHAR, n_hosts INTEGER, n_min INTEGER, settled_at TIMESTAMP, n_bound INTEGER,
    UNIQUE (series, cohort, window_start, version)
);
ALTER TABLE cells ADD COLUMN IF NOT EXISTS bias_bound DOUBLE;
ALTER TABLE cells ADD COLUMN IF NOT EXISTS n_bound INTEGER;
ALTER TABLE suppressed ADD COLUMN IF NOT EXISTS n_bound INTEGER;
""" + "".join(
    f"ALTER TABLE cells ADD COLUMN IF NOT EXISTS {name} "
    f"{'BIGINT' if pa.types.is_integer(kind) else 'DOUBLE'};"
    for name, kind in release_files.BASIS.items()
)

FORGOTTEN_AT_ONCE: Final = 10
"""Windows, so that the Leader's loop waits 0.1 s at most."""

_OLDER_WINDOWS: Final = """
SELECT series, cohort, window_start FROM windows
WHERE window_start < ? AND window_start < (
    SELECT max(newest.window_start) FROM windows AS newest
    WHERE newest.series = windows.series AND newest.cohort = windows.cohort
)
ORDER BY window_start
"""
_OLDER_SUPPRESSED: Final = (
    "SELECT series, cohort, window_start, version FROM suppressed WHERE window_start < ?"
)
_OF_WINDOW: Final = "WHERE series = ? AND cohort = ? AND window_start = ?"


class _Stopped(Exception):
    """The process ends: what is left over is done by the next one."""


class Upkeep(Closing):
    """Compacts one folder beside the Leader's loop, in a thread of its own, once an hour."""

    def __init__(
        self,
        folder: Path,
        keep_days: Mapping[str, int],
        roll_ups: RollUps,
        causes_of: CauseTables,
    ) -> None:
        self._folder = folder
        self._compaction = Compaction(folder, keep_days, roll_ups, self._go_on, causes_of)
        self._ending = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compaction")
        self._running: Future[Compacted] | None = None
        self._due_s = 0.0

    def close(self) -> None:
        """End after the step that is under way: each leaves every window readable."""
        self._ending.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def turn(self, now_s: float) -> bool:
        """Begin a compaction when one is due; say whether one has ended since the last turn.

        Raises      StorageUnavailable: it could not be done, and is tried again when it is due
        """
        if self._running is None:
            if not 0 < self._due_s - now_s <= EVERY_S:
                self._due_s = now_s + EVERY_S
                self._running = self._threads.submit(self._compaction.run, utc(now_s).date())
            return False
        if not self._running.done():
            return False
        ended, self._running = self._running, None
        try:
            ended.result()
        except (pa.ArrowException, duckdb.Error, QueryRefused) as error:  # out of memory, too
            raise StorageUnavailable(self._folder, _first_line(error)) from error
        except CompactionUnderWay:
            return False
        return True

    def keeps(self, root: Path, single: Path, now_s: float) -> bool:
        return is_packed(root, single) or self._compaction.is_too_old(single, utc(now_s).date())

    def _go_on(self, step: str) -> None:
        del step
        if self._ending.is_set():
            raise _Stopped


_FAILING: Final = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.SerializationException,
    duckdb.TransactionException,
)
"""How DuckDB says that its file or disk fails, as opposed to a query of ours: a commit that a full
disk does not take is a TransactionException."""


class StoreConflict(ValueError):
    """A second, different release for a window that is already released."""


class Store(Closing):
    """Releases of one Leader.

    path       the DuckDB file; DuckDB refuses a second process while it is open
    folder     the folder of released Parquet, readable by others; the file must not lie in it
    detector, agents_model   what root-cause tables are corrected by, see `causes.cause_table`
    Raises     ValueError when it does

    keep_days, roll_ups     what is removed, and what is asked before: see `Compaction`

    A store that cannot be written is opened anew at the next try, which loses nothing.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        catalogue: Catalogue,
        *,
        detector: Detector | None = None,
        agents_model: str | None = None,
        keep_days: Mapping[str, int] | None = None,
        roll_ups: RollUps = NO_ROLL_UPS,
    ) -> None:
        self._detector, self._agents_model = detector, agents_model
        self._folder = folder.resolve()
        if self._folder in path.resolve().parents:
            raise ValueError(
                f"the store {path} must not lie in the folder that readers see, {folder}"
            )
        self._path = path
        self._catalogue = catalogue
        self._gone: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._upkeep = Upkeep(self._folder, keep_days or {}, roll_ups, self._causes_of)
        self._opened: duckdb.DuckDBPyConnection | None = None

    def close(self) -> None:
        self._upkeep.close()
        self._close_file()

    def _close_file(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def _database(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            public_folder(self._folder)
            mark_new(self._folder)
            try:
                self._opened = open_duckdb(self._path)
                self._opened.execute(_TABLES)
                _make_coarse(self._opened)
            except duckdb.Error as error:  # open elsewhere, damaged, on a disk that fails
                raise StorageUnavailable(self._path, _first_line(error)) from error
        return self._opened

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Tell a disk that takes nothing from a mistake of ours."""
        try:
            yield
        except (*_FAILING, OSError) as error:
            with suppress(duckdb.Error):
                self._close_file()
            if isinstance(error, StorageUnavailable):
                raise
            where = getattr(error, "filename", None) or self._path
            raise StorageUnavailable(where, _first_line(error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.begin()
        try:
            yield
            self._database.commit()
        except BaseException:
            with suppress(duckdb.Error):  # a full disk has ended the whole database
                self._database.rollback()
            raise

    def write(self, release: ReleasedWindow) -> None:
        """Keep one release; a second time does nothing.

        Raises      StoreConflict when this window was released with another vector,
                    StorageUnavailable
        """
        self._keep(release.published(self._catalogue))

    def _keep(self, release: PublishedWindow) -> None:
        with self._storing():
            self._complete_at_first()
            start = utc(release.window_start_s)
            target = release_path(self._folder, release.task.series, release.cohort, start)
            if is_packed(self._folder, target):
                self._check_same(release)
                return
            self._insert(release)
            if not target.exists():
                self._export(release.task.series, release.cohort, start)

    def suppress(self, window: SuppressedWindow) -> None:
        """Keep that a window ended without a release; a second time does nothing.

        Raises      StorageUnavailable
        """
        start, hosts = utc(window.window_start_s), window.coarse_hosts()
        with self._storing():
            self._complete_at_first()
            self._database.execute(
                "INSERT OR IGNORE INTO suppressed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(window.series, window.cohort, start, window.window_s, window.version),
                    *(window.reason, hosts.value, window.n_min, utc(int(window.settled_s))),
                    hosts.bound,
                ),
            )
            self._export_suppressed(window.series, window.cohort, start, window.version)

    def tidy(self, now_s: float) -> None:
        """Have closed days packed, in a thread of its own, and let go of what packs have.

        Call it often: the database lets go of a few windows each time.
        Raises      StorageUnavailable
        """
        with self._storing():
            self._complete_at_first()
            if self._upkeep.turn(now_s):
                self._gone.extend(self._kept_elsewhere(now_s))
            if self._gone:
                self._forget()

    def _forget(self) -> None:
        with self._transaction():
            for _ in range(min(len(self._gone), FORGOTTEN_AT_ONCE)):
                table, key = self._gone.popleft()
                if table == "windows":
                    self._database.execute(f"DELETE FROM cells {_OF_WINDOW}", key)
                version = " AND version IS NOT DISTINCT FROM ?" if table == "suppressed" else ""
                self._database.execute(f"DELETE FROM {table} {_OF_WINDOW}{version}", key)

    def _kept_elsewhere(self, now_s: float) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Give what the database need not keep, by table: packs have it, or it is too old for them.

        The newest window of a cohort stays: the causes of the next one are compared with it.
        """
        before = utc(now_s - now_s % DAY_S)
        for key in self._database.execute(_OLDER_WINDOWS, (before,)).fetchall():
            if self._upkeep.keeps(self._folder, release_path(self._folder, *key), now_s):
                yield "windows", key
        apart = self._folder / release_files.SUPPRESSED_FOLDER
        for key in self._database.execute(_OLDER_SUPPRESSED, (before,)).fetchall():
            if self._upkeep.keeps(apart, release_files.suppressed_path(self._folder, *key), now_s):
                yield "suppressed", key

    def _export_suppressed(
        self, series: str, cohort: int, start: datetime, version: int | None
    ) -> None:
        target = release_files.suppressed_path(self._folder, series, cohort, start, version)
        if _is_there(self._folder / release_files.SUPPRESSED_FOLDER, target):
            return
        rows = self._database.sql(
            f"SELECT {', '.join(SUPPRESSED_SCHEMA.names)} FROM suppressed "
            f"{_OF_WINDOW} AND version IS NOT DISTINCT FROM ?",
            params=(series, cohort, start, version),
        ).to_arrow_table()
        public_folder(target.parent.parent.parent)
        write_whole(rows.cast(SUPPRESSED_SCHEMA), target)

    def repair(self) -> int:
        """Write the files of each release that a crash left without; return how many there were.

        Raises      StorageUnavailable
        """
        with self._storing():
            return self._complete()

    def _complete_at_first(self) -> None:
        if self._opened is None:
            self._complete()

    def _complete(self) -> int:
        for leftover in self._folder.glob("**/series=*/date=*/.*.partial"):
            if leftover.is_file():
                leftover.unlink()
        known = "SELECT series, cohort, window_start FROM windows ORDER BY ALL"
        missing = [
            key
            for key in self._database.execute(known).fetchall()
            if not _is_there(self._folder, release_path(self._folder, *key))
            or self._lacks_causes(*key)
        ]
        for series, cohort, start in missing:
            self._export(series, cohort, start)
        suppressed = "SELECT series, cohort, window_start, version FROM suppressed ORDER BY ALL"
        for key in self._database.execute(suppressed).fetchall():
            self._export_suppressed(*key)
        return len(missing)

    def _check_same(self, release: PublishedWindow) -> None:
        """Compare a window that is in a pack with what is to be written again.

        Raises      StoreConflict when they differ
        """
        start = utc(release.window_start_s)
        found = read_releases(
            self._folder,
            series=release.task.series,
            since=start,
            until=start + timedelta(microseconds=1),
        )
        found = found[found.cohort == release.cohort]
        values = {(cell.section, cell.cell): cell.value for cell in self._estimated(release)}
        known = dict(zip(zip(found.section, found.cell, strict=True), found.value, strict=True))
        if values != known:
            raise _conflict(release)

    def _estimated(self, one: PublishedWindow) -> list[Cell]:
        return estimate(one.task, self._catalogue, one.vector, one.counts)

    def _insert(self, release: PublishedWindow) -> None:
        """Insert in one transaction, unless this very release is already there."""
        key = (release.task.series, release.cohort, utc(release.window_start_s))
        asked = f"SELECT digest FROM windows {_OF_WINDOW}"
        known = self._database.execute(asked, key).fetchone()
        if known is not None:
            if known[0] != release.digest:
                raise _conflict(release)
            return
        rows = release_rows(release, self._estimated(release))
        try:
            with self._transaction():
                self._database.execute(
                    "INSERT INTO windows VALUES (?, ?, ?, ?)", (*key, release.digest)
                )
                self._database.register("released_rows", rows)
                self._database.execute("INSERT INTO cells BY NAME SELECT * FROM released_rows")
        finally:
            with suppress(duckdb.Error):
                self._database.unregister("released_rows")

    def _export(self, series: str, cohort: int, start: datetime) -> None:
        rows = self._database.sql(
            f"SELECT {', '.join(release_files.COLUMNS)} FROM cells {_OF_WINDOW} ORDER BY rowid",
            params=(series, cohort, start),
        ).to_arrow_table()
        write_whole(
            rows.cast(release_files.SCHEMA), release_path(self._folder, series, cohort, start)
        )
        self._export_causes(series, cohort, start)

    def _lacks_causes(self, series: str, cohort: int, start: datetime) -> bool:
        target = cause_path(self._folder, series, cohort, start)
        if _is_there(self._folder / CAUSES_FOLDER, target):
            return False
        counted = self._database.execute(
            f"SELECT 1 FROM cells {_OF_WINDOW} AND list_contains(?, section) LIMIT 1",
            (series, cohort, start, list(CAUSE_SECTIONS)),
        ).fetchall()
        return bool(counted)

    def _causes_of(self, released: Iterable[Record]) -> list[CauseTable]:
        return tables_of(released, self._detector, self._agents_model)

    def _export_causes(self, series: str, cohort: int, start: datetime) -> None:
        """Write the root-cause tables of a release that counts causes."""
        released = self._database.sql(
            f"SELECT {RELEASED_COLUMNS} FROM cells "
            "WHERE series = ? AND cohort = ? AND list_contains(?, section) "
            "AND (window_start = ? OR window_start + to_seconds(window_s) = ?)",
            params=(series, cohort, list(CAUSE_SECTIONS), start, start),
        ).to_arrow_table()
        own = [
            table
            for table in self._causes_of(released.to_pylist())
            if utc(table.window_start_s) == start
        ]
        if own:
            target = cause_path(self._folder, series, cohort, start)
            public_folder(target.parent.parent.parent)
            write_whole(cause_columns(own), target)


def _make_coarse(database: duckdb.DuckDBPyConnection) -> None:
    """Write what is left of before counts were coarse anew, all of it or nothing."""
    for table, coarse in (
        ("cells", coarse_releases_sql("SELECT *, rowid AS place FROM cells WHERE n_bound IS NULL")),
        (
            "suppressed",
            coarse_hosts_sql(
                "SELECT *, rowid AS place FROM suppressed WHERE n_bound IS NULL", "n_min"
            ),
        ),
    ):
        if not database.execute(f"SELECT 1 FROM {table} WHERE n_bound IS NULL LIMIT 1").fetchall():
            continue
        database.execute(f"CREATE OR REPLACE TEMP TABLE coarse AS {coarse}")
        database.begin()
        database.execute(f"DELETE FROM {table} WHERE n_bound IS NULL")
        kept = "SELECT * EXCLUDE (place) FROM coarse ORDER BY place"
        database.execute(f"INSERT INTO {table} BY NAME {kept}")
        database.commit()
        database.execute("DROP TABLE coarse")


def _conflict(release: PublishedWindow) -> StoreConflict:
    return StoreConflict(
        f"window {utc(release.window_start_s)} of {release.task.series}, cohort {release.cohort}, "
        "was released as another vector"
    )


def _is_there(root: Path, single: Path) -> bool:
    return single.exists() or is_packed(root, single)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
