"""Hours of whole months in one file each: what a question of many hours reads.

A day's file of hours is quick to make anew and holds every cell of 24 hours; a question of one cell
of a year would open hundreds. A month that is over is written once more, sorted by cell. Such a
file is always true to its days: it goes before one of them changes, and is made again later.

FOLDER/sums/hour/month=2026-11/rows.parquet
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from .rollup_files import ROWS, files_between, first_of, rows_sql, written_whole
from .rollup_periods import ALWAYS, NEVER, RollupPeriod

MONTHS: Final = "month=*"
"""Folders of such files."""

_MONTH: Final = slice(5, 12)
"""Of the name of a day's folder, date=2026-11-23, its month."""

_QUIET: Final = timedelta(days=1)
"""So long after its end a month is hardly changed any more."""
_GROUP_ROWS: Final = 32_768
"""Of a row group: one cell of a month lies in one or two."""


def drop_month(day: Path) -> None:
    """Remove the file of the month that a day's file is about to differ from."""
    _month_of(day).unlink(missing_ok=True)


def files_to_read(
    folder: Path,
    kind: str,
    period: RollupPeriod,
    first: datetime = ALWAYS,
    end: datetime = NEVER,
) -> list[Path]:
    """Give the files of periods that start in [first, end): where they can be, those of months."""
    if period is not RollupPeriod.HOUR:
        return files_between(folder, kind, period, first, end)
    hours = folder / kind / period.value
    names = sorted(os.listdir(hours)) if hours.is_dir() else []  # noqa: PTH208  (a year's hundreds)
    paths = {name: hours / name / ROWS for name in names if name.startswith("month=")}
    months = {
        name.removeprefix("month="): path
        for name, path in paths.items()
        if path.exists() and _lies_between(path, first, end)
    }
    start, last = period.span(first)[0], period.span(end)[0]
    found: dict[Path, None] = {}
    for name in names:
        if not name.startswith("date="):
            continue
        if name[_MONTH] in months:
            found[months[name[_MONTH]]] = None
        elif start <= first_of(day := hours / name / ROWS) <= last and day.exists():
            found[day] = None
    return list(found)


def _lies_between(month: Path, first: datetime, end: datetime) -> bool:
    """Whether each hour of a month starts in [first, end)."""
    name = month.parent.name.removeprefix("month=")
    start, after = RollupPeriod.DAY.span(datetime.fromisoformat(f"{name}-01"))
    return first <= start and after - RollupPeriod.HOUR.length < end


def months_to_write(hours: Path) -> dict[Path, list[Path]]:
    """Give the months that are over and have no file, each with the files of its days.

    hours       the folder of hours of one kind
    """
    days = sorted(hours.glob(f"date=*/{ROWS}"))
    if not days:
        return {}
    newest = first_of(days[-1])
    found: dict[Path, list[Path]] = {}
    for day in days:
        if RollupPeriod.DAY.span(first_of(day))[1] + _QUIET <= newest:
            found.setdefault(_month_of(day), []).append(day)
    return {month: files for month, files in found.items() if not month.exists()}


def write_month(database: duckdb.DuckDBPyConnection, month: Path, days: Sequence[Path]) -> None:
    """Write the file of a month from those of its days."""
    schema = pq.read_schema(days[0])
    with (
        written_whole(month) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd") as file,
    ):
        for rows in _by_section(database, rows_sql(days, schema), schema):
            file.write_table(rows, row_group_size=_GROUP_ROWS)


def _by_section(
    database: duckdb.DuckDBPyConnection, rows: str, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Give the rows by series and, where they have cells, section: never many at once."""
    keys = [name for name in ("series", "section") if name in schema.names]
    order = [name for name in (*keys, "cell", "cohort", "period_start") if name in schema.names]
    found = database.execute(
        f"SELECT DISTINCT {', '.join(keys)} FROM ({rows}) ORDER BY ALL"  # noqa: S608
    ).fetchall()
    chosen = " AND ".join(f"{key} = ?" for key in keys)
    text = f"SELECT * FROM ({rows}) WHERE {chosen} ORDER BY {', '.join(order)}"  # noqa: S608
    for values in found:
        yield database.sql(text, params=list(values)).to_arrow_table().cast(schema)


def _month_of(day: Path) -> Path:
    return day.parent.with_name(f"month={first_of(day):%Y-%m}") / day.name
