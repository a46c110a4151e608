"""Folders of releases as a store writes them, quickly, of windows whose true sums are known."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.protocol.released import ReleasedWindow
from aggregator.releases.cause_files import cause_columns, cause_path, tables_of
from aggregator.releases.packs import mark_new
from aggregator.releases.release_files import (
    SUPPRESSED_SCHEMA,
    release_path,
    release_rows,
    suppressed_path,
)
from aggregator.statistics.statistics import estimate
from tests.aggregator.releases.release_kit import CATALOGUE


def write_releases(folder: Path, windows: Iterable[ReleasedWindow]) -> None:
    """Write releases as files, without the store's own database."""
    folder.mkdir(parents=True, exist_ok=True)
    mark_new(folder)
    for window in windows:
        one, start = window.published(CATALOGUE), _utc(window.window_start_s)
        cells = estimate(one.task, CATALOGUE, one.vector, one.counts)
        rows = release_rows(one, cells)
        _write(rows, release_path(folder, one.task.series, one.cohort, start))
        if causes := tables_of(rows.to_pylist(), None, None):
            _write(cause_columns(causes), cause_path(folder, one.task.series, one.cohort, start))


def write_suppressed(folder: Path, series: str, starts: Iterable[int], reason: str) -> None:
    for start in starts:
        row = {
            "series": series, "cohort": 0, "window_start": _utc(start), "window_s": 60,
            "version": 1, "reason": reason, "n_hosts": 9_000, "n_min": 10_000,
            "settled_at": _utc(start + 100), "n_bound": 50,
        }  # fmt: skip
        rows = pa.Table.from_pylist([row], SUPPRESSED_SCHEMA)
        _write(rows, suppressed_path(folder, series, 0, _utc(start), 1))


def _write(rows: pa.Table, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, target)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
