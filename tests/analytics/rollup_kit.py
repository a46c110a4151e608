"""Folders of releases as a store writes them, quickly, of windows whose true sums are known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.protocol.released import ReleasedWindow
from aggregator.releases.cause_files import cause_columns, cause_path, tables_of
from aggregator.releases.release_files import (
    MEANINGS,
    SUPPRESSED_SCHEMA,
    release_path,
    suppressed_path,
)
from aggregator.statistics.statistics import Cell, estimate
from tests.aggregator.releases.release_kit import CATALOGUE

_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in MEANINGS.items()])


def write_releases(folder: Path, windows: Iterable[ReleasedWindow]) -> None:
    """Write releases as files, without the store's own database."""
    names = [field.name for field in fields(Cell) if field.name in MEANINGS]
    for window in windows:
        task, start = window.task, _utc(window.window_start_s)
        same = {
            "series": task.series, "cohort": window.cohort, "window_start": start,
            "window_s": task.window_s, "n_hosts": window.n,
            "epsilon": task.epsilon_millionths / 1e6, "delta": task.delta_1e12 / 1e12,
            "domain": task.domain, "released_at": _utc(window.released_s),
            "rejections": json.dumps(dict(window.rejections)),
        }  # fmt: skip
        cells = estimate(task, CATALOGUE, window.vector, window.n, window.capacity)
        found = [{name: getattr(cell, name) for name in names} | same for cell in cells]
        rows = pa.Table.from_pylist(found, _SCHEMA)
        _write(rows, release_path(folder, task.series, window.cohort, start))
        if causes := tables_of(found, None, None):
            _write(cause_columns(causes), cause_path(folder, task.series, window.cohort, start))


def write_suppressed(folder: Path, series: str, starts: Iterable[int], reason: str) -> None:
    for start in starts:
        row = {
            "series": series, "cohort": 0, "window_start": _utc(start), "window_s": 60,
            "version": 1, "reason": reason, "n_hosts": 9_000, "n_min": 10_000,
            "settled_at": _utc(start + 100),
        }  # fmt: skip
        rows = pa.Table.from_pylist([row], SUPPRESSED_SCHEMA)
        _write(rows, suppressed_path(folder, series, 0, _utc(start), 1))


def _write(rows: pa.Table, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, target)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
