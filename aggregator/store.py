"""The Leader's releases: a DuckDB file that only its process opens, and Parquet for everyone else.

A release is one DuckDB transaction, then one Parquet file that appears whole under its final name,
and where it counts causes a second one with their table. A crash in between leaves a release
without its files; the next start writes what is missing.
Writing a release again changes nothing, and another vector under the same key is refused: a release
is final.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from transport.closing import Closing
from wire.catalogue import Catalogue
from wire.task import DEMO_DOMAIN

from .cause_files import RELEASED_COLUMNS, cause_columns, cause_path, tables_of
from .causes import CAUSE_SECTIONS
from .incident_detector import Detector
from .release_files import COLUMNS, SCHEMA, SUPPRESSED_SCHEMA, release_path, suppressed_path
from .released import ReleasedWindow, SuppressedWindow
from .state_file import StorageUnavailable
from .statistics import Cell, estimate

_TABLES = """
CREATE TABLE IF NOT EXISTS windows (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, digest BLOB NOT NULL,
    PRIMARY KEY (series, cohort, window_start)
);
CREATE TABLE IF NOT EXISTS cells (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, window_s INTEGER,
    section VARCHAR, cell VARCHAR,
    unit VARCHAR, kind VARCHAR, value DOUBLE, standard_error DOUBLE, low DOUBLE, high DOUBLE,
    share DOUBLE, share_low DOUBLE, share_high DOUBLE, below_noise BOOLEAN,
    bias_bound DOUBLE, n_hosts INTEGER,
    epsilon DOUBLE, delta DOUBLE, domain VARCHAR, released_at TIMESTAMP, rejections VARCHAR,
    PRIMARY KEY (series, cohort, window_start, section, cell)
);
CREATE TABLE IF NOT EXISTS suppressed (
    series VARCHAR, cohort INTEGER, window_start TIMESTAMP, window_s INTEGER, version INTEGER,
    reason VARCHAR, n_hosts INTEGER, n_min INTEGER, settled_at TIMESTAMP,
    UNIQUE (series, cohort, window_start, version)
);
ALTER TABLE cells ADD COLUMN IF NOT EXISTS bias_bound DOUBLE;
"""


_FAILING: Final = (
    duckdb.IOException,
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.SerializationException,
)
"""How DuckDB says that its file or disk fails, as opposed to a query of ours."""


class StoreConflict(ValueError):
    """A second, different release for a window that is already released."""


class Store(Closing):
    """Releases of one Leader.

    path       the DuckDB file; DuckDB refuses a second process while it is open
    folder     the folder of released Parquet, readable by others; the file must not lie in it
    detector, agents_model   what root-cause tables are corrected by, see `causes.cause_table`
    Raises     ValueError when it does

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
    ) -> None:
        self._detector, self._agents_model = detector, agents_model
        self._folder = folder.resolve()
        if self._folder in path.resolve().parents:
            raise ValueError(
                f"the store {path} must not lie in the folder that readers see, {folder}"
            )
        self._path = path
        self._catalogue = catalogue
        self._opened: duckdb.DuckDBPyConnection | None = None

    def close(self) -> None:
        """Close the DuckDB file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _database(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _public_folder(self._folder)
            try:
                self._opened = duckdb.connect(str(self._path))
                self._opened.execute(_TABLES)
            except duckdb.Error as error:  # open elsewhere, damaged, on a disk that fails
                raise StorageUnavailable(self._path, _first_line(error)) from error
        return self._opened

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Tell a disk that takes nothing from a mistake of ours."""
        try:
            yield
        except StorageUnavailable:
            self._let_go()
            raise
        except (*_FAILING, OSError) as error:
            self._let_go()
            where = getattr(error, "filename", None) or self._path
            raise StorageUnavailable(where, _first_line(error)) from error

    def _let_go(self) -> None:
        with suppress(duckdb.Error):
            self.close()
        self._opened = None

    def write(self, release: ReleasedWindow) -> None:
        """Keep one release; a second time does nothing.

        Raises      StoreConflict when this window was released with another vector,
                    StorageUnavailable
        """
        with self._storing():
            self._complete_at_first()
            self._insert(release)
            start = _utc(release.window_start_s)
            if not release_path(self._folder, release.task.series, release.cohort, start).exists():
                self._export(release.task.series, release.cohort, start)

    def suppress(self, window: SuppressedWindow) -> None:
        """Keep that a window ended without a release; a second time does nothing.

        Raises      StorageUnavailable
        """
        start = _utc(window.window_start_s)
        with self._storing():
            self._complete_at_first()
            self._database.execute(
                "INSERT OR IGNORE INTO suppressed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(window.series, window.cohort, start, window.window_s, window.version),
                    *(window.reason, window.hosts, window.n_min, _utc(int(window.settled_s))),
                ),
            )
            self._export_suppressed(window.series, window.cohort, start, window.version)

    def _export_suppressed(
        self, series: str, cohort: int, start: datetime, version: int | None
    ) -> None:
        target = suppressed_path(self._folder, series, cohort, start, version)
        if target.exists():
            return
        rows = self._database.sql(
            "SELECT * FROM suppressed WHERE series = ? AND cohort = ? AND "
            "window_start = ? AND version IS NOT DISTINCT FROM ?",
            params=(series, cohort, start, version),
        ).to_arrow_table()
        _public_folder(target.parent.parent.parent)
        _write_whole(rows.cast(SUPPRESSED_SCHEMA), target)

    def _repair_suppressed(self) -> None:
        kept = self._database.execute(
            "SELECT series, cohort, window_start, version FROM suppressed ORDER BY ALL"
        ).fetchall()
        for key in kept:
            self._export_suppressed(*key)

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
            leftover.unlink()
        missing = [
            key
            for key in self._database.execute(
                "SELECT series, cohort, window_start FROM windows ORDER BY ALL"
            ).fetchall()
            if not release_path(self._folder, *key).exists() or self._lacks_causes(*key)
        ]
        for series, cohort, start in missing:
            self._export(series, cohort, start)
        self._repair_suppressed()
        return len(missing)

    def _insert(self, release: ReleasedWindow) -> None:
        """Insert in one transaction, unless this very release is already there."""
        key = (release.task.series, release.cohort, _utc(release.window_start_s))
        digest = sha256(
            release.n.to_bytes(8, "big") + release.vector.astype("<i8").tobytes()
        ).digest()
        known = self._database.execute(
            "SELECT digest FROM windows WHERE series = ? AND cohort = ? AND window_start = ?", key
        ).fetchone()
        if known is not None:
            if known[0] != digest:
                raise StoreConflict(
                    f"window {key[2]} of {key[0]}, cohort {key[1]}, was released as another vector"
                )
            return
        rows = _table(
            release,
            estimate(release.task, self._catalogue, release.vector, release.n, release.capacity),
        )
        self._database.begin()
        try:
            self._database.execute("INSERT INTO windows VALUES (?, ?, ?, ?)", (*key, digest))
            self._database.register("released_rows", rows)
            self._database.execute("INSERT INTO cells BY NAME SELECT * FROM released_rows")
            self._database.commit()
        except BaseException:
            with suppress(duckdb.Error):  # a full disk has ended the whole database
                self._database.rollback()
            raise
        finally:
            with suppress(duckdb.Error):
                self._database.unregister("released_rows")

    def _export(self, series: str, cohort: int, start: datetime) -> None:
        rows = self._database.sql(
            f"SELECT {', '.join(COLUMNS)} FROM cells "  # noqa: S608  (names of this module)
            "WHERE series = ? AND cohort = ? AND window_start = ? ORDER BY rowid",
            params=(series, cohort, start),
        ).to_arrow_table()
        _write_whole(rows.cast(SCHEMA), release_path(self._folder, series, cohort, start))
        self._export_causes(series, cohort, start)

    def _lacks_causes(self, series: str, cohort: int, start: datetime) -> bool:
        if cause_path(self._folder, series, cohort, start).exists():
            return False
        counted = self._database.execute(
            "SELECT 1 FROM cells WHERE series = ? AND cohort = ? AND window_start = ? "
            "AND list_contains(?, section) LIMIT 1",
            (series, cohort, start, list(CAUSE_SECTIONS)),
        ).fetchall()
        return bool(counted)

    def _export_causes(self, series: str, cohort: int, start: datetime) -> None:
        """Write the root-cause tables of a release that counts causes."""
        released = self._database.sql(
            f"SELECT {RELEASED_COLUMNS} FROM cells "  # noqa: S608  (names of this package)
            "WHERE series = ? AND cohort = ? AND list_contains(?, section) "
            "AND (window_start = ? OR window_start + to_seconds(window_s) = ?)",
            params=(series, cohort, list(CAUSE_SECTIONS), start, start),
        ).to_arrow_table()
        own = [
            table
            for table in tables_of(released.to_pylist(), self._detector, self._agents_model)
            if _utc(table.window_start_s) == start
        ]
        if own:
            target = cause_path(self._folder, series, cohort, start)
            _public_folder(target.parent.parent.parent)
            _write_whole(cause_columns(own), target)


def _table(release: ReleasedWindow, cells: list[Cell]) -> pa.Table:
    """One row per cell, in the order of the vector."""
    task, count = release.task, len(cells)
    same = {
        "series": task.series,
        "cohort": release.cohort,
        "window_start": _utc(release.window_start_s),
        "window_s": task.window_s,
        "n_hosts": release.n,
        "epsilon": task.epsilon_millionths / 1e6,
        "delta": task.delta_1e12 / 1e12,
        "domain": task.domain if task.domain == DEMO_DOMAIN else "production",
        "released_at": datetime.fromtimestamp(release.released_s, UTC).replace(tzinfo=None),
        "rejections": json.dumps(dict(sorted(release.rejections.items()))),
    }
    columns = [
        pa.array(
            [same[f.name]] * count if f.name in same else [getattr(c, f.name) for c in cells],
            f.type,
        )
        for f in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _write_whole(rows: pa.Table, target: Path) -> None:
    """Write beside the target, sync, rename: a reader sees the whole file or none."""
    for folder in (target.parent.parent, target.parent):
        _public_folder(folder)
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("wb") as file:
        pq.write_table(rows, file, compression="zstd")
        file.flush()
        # Released numbers are public: readers run under other users than the Leader.
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    partial.replace(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _public_folder(folder: Path) -> None:
    """Make a folder that readers under other users may enter, whatever the Leader's umask."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        _sync_folder(folder.parent)


def _utc(seconds: int) -> datetime:
    """Naive UTC, as every timestamp in the store is."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
