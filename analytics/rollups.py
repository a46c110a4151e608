"""Keep roll-ups true to the releases: what is new is added up, what came late is added up again.

Only hours, days and weeks with new windows are made anew, and never from fewer windows than are in
them: releases of minutes may be gone by then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.releases import MoreViews, open_views

from .outcomes_sql import OUTCOME_SCHEMA, merged_outcomes_sql, outcomes_sql
from .rollup_files import (
    OUTCOMES,
    SUMS,
    RollupsUnavailable,
    SettledHours,
    alone,
    file_of,
    files_between,
    rows_sql,
    write_rows,
)
from .rollup_periods import RollupPeriod
from .sums_sql import SUM_SCHEMA, merged_sql, windows_sql

_ATTEMPTS: Final = 5
_AT_ONCE: Final = timedelta(days=7)
"""Of releases that are added up before it is kept that they are: a run that is cut off goes on."""
_KEY: Final = "series, cohort, period_start"
SCHEMAS: Final = {SUMS: SUM_SCHEMA, OUTCOMES: OUTCOME_SCHEMA}
"""Of the files of either kind."""

_MERGED: Final = {SUMS: merged_sql, OUTCOMES: merged_outcomes_sql}


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What bringing roll-ups up to date came to.

    hours       that had new windows
    written     files of roll-ups that were written
    """

    hours: int
    written: int


def refresh(releases: Path, folder: Path) -> Refreshed:
    """Bring the roll-ups of a folder of releases up to date.

    folder      of the roll-ups
    Raises      FileNotFoundError, RollupsUnavailable
    """
    if not releases.is_dir():
        raise FileNotFoundError(f"no folder of releases at {releases.resolve()}")
    if not SettledHours.of(releases).more_than(SettledHours.read(folder)):
        return Refreshed(0, 0)
    hours_added = written = 0
    with alone(folder):
        known = SettledHours.read(folder)
        while hours := (found := SettledHours.of(releases)).more_than(known):
            chosen = {hour for hour in hours if hour < min(hours) + _AT_ONCE}
            written += _add_patiently(releases, folder, chosen)
            known = known.with_hours(found, chosen)
            known.write(folder)
            hours_added += len(chosen)
    return Refreshed(hours_added, written)


def has_rolled_up(releases: Path, folder: Path, series: str, first: date, last: date) -> bool:
    """Whether the roll-ups have every window of a series' days: the days may then be removed.

    first, last     UTC, both included
    """
    now, then = SettledHours.of(releases), SettledHours.read(folder)
    return not any(first <= hour.date() <= last for hour in now.more_than(then, series))


def _add_patiently(releases: Path, folder: Path, hours: Collection[datetime]) -> int:
    """Do as `_add` does, again where files moved meanwhile: a compaction takes the folder anew.

    Raises      RollupsUnavailable where they cannot be read at last
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return _add(releases, folder, hours)
        except duckdb.IOException as error:
            if not left:
                raise RollupsUnavailable(f"releases at {releases}: {error}") from error
    raise AssertionError("the last attempt returns or raises")


def _add(releases: Path, folder: Path, hours: Collection[datetime]) -> int:
    """Make the periods of some hours anew; return how many files were written."""
    written = 0
    with open_views(releases, MoreViews(lambda _: None, [folder])) as database:
        for period in RollupPeriod:
            starts = {period.start(hour) for hour in hours}
            for first, end in sorted({period.span(start) for start in starts}):
                within = sorted(start for start in starts if first <= start < end)
                for kind in (SUMS, OUTCOMES):
                    written += _write(database, folder, kind, period, within)
    return written


def _write(
    database: duckdb.DuckDBPyConnection,
    folder: Path,
    kind: str,
    period: RollupPeriod,
    starts: list[datetime],
) -> int:
    """Make some periods of one file anew; return 1 if that changed the file."""
    target = file_of(folder, kind, period, starts[0])
    schema = SCHEMAS[kind]
    fresh = _fresh_sql(folder, kind, period, starts)
    kept = rows_sql([target] if target.exists() else [], schema)
    rows = database.sql(_joined_sql(kept, fresh)).to_arrow_table()
    rows = rows.select(schema.names).cast(schema)
    if target.exists() and rows.equals(_read(target, schema)):
        return 0
    write_rows(rows, target)
    return 1


def _fresh_sql(folder: Path, kind: str, period: RollupPeriod, starts: list[datetime]) -> str:
    """Add up the periods that start at `starts`, from shorter ones and from releases."""
    first, end = starts[0], starts[-1] + period.length
    chosen, seconds = _chosen(period, first, end), period.seconds
    source = f"SELECT * FROM released WHERE {chosen}"  # noqa: S608
    of_windows = windows_sql(source, seconds) if kind == SUMS else outcomes_sql(chosen, seconds)
    names = ", ".join(SCHEMAS[kind].names)
    parts = [f"SELECT {names} FROM ({of_windows})"]  # noqa: S608
    merged = merged_sql if kind == SUMS else merged_outcomes_sql
    if period.shorter is not None:
        files = files_between(folder, kind, period.shorter, first, end)
        within = (
            f"SELECT * FROM ({rows_sql(files, SCHEMAS[kind])}) "  # noqa: S608
            f"WHERE period_start >= TIMESTAMP '{first}' AND period_start < TIMESTAMP '{end}'"
        )
        bucket = f"time_bucket(to_seconds({seconds}), period_start, TIMESTAMP '1970-01-01')"
        parts.append(f"SELECT {names} FROM ({merged(within, start=bucket)})")  # noqa: S608
    wanted = ", ".join(f"TIMESTAMP '{start}'" for start in starts)
    # Periods between those that were asked for are left as they are.
    return (
        f"SELECT {names} FROM ({merged(' UNION ALL '.join(parts))}) "  # noqa: S608
        f"WHERE period_start IN ({wanted})"
    )


def _chosen(period: RollupPeriod, first: datetime, end: datetime) -> str:
    """The condition on windows that a period is the shortest for, and that start in [first, end).

    Their `date` is named too: it is the folder of their files.
    """
    longer_than = 0 if period.shorter is None else period.shorter.seconds
    return (
        f"date >= DATE '{first:%Y-%m-%d}' AND date <= DATE '{end:%Y-%m-%d}' "
        f"AND window_start >= TIMESTAMP '{first}' AND window_start < TIMESTAMP '{end}' "
        f"AND window_s > {longer_than} AND window_s <= {period.seconds}"
    )


def _joined_sql(kept: str, fresh: str) -> str:
    """Replace what was kept by what is fresh, unless that is made of fewer windows."""
    return f"""
WITH kept AS ({kept}), fresh AS ({fresh}), richness AS (
    SELECT {_KEY}, max(windows) FILTER (is_fresh) AS new, max(windows) FILTER (NOT is_fresh) AS old
    FROM (
        SELECT {_KEY}, windows, true AS is_fresh FROM fresh
        UNION ALL SELECT {_KEY}, windows, false FROM kept
    ) GROUP BY ALL
), better AS (
    SELECT * FROM fresh SEMI JOIN (FROM richness WHERE old IS NULL OR new >= old) USING ({_KEY})
)
SELECT * FROM kept ANTI JOIN better USING ({_KEY}) UNION ALL BY NAME FROM better ORDER BY ALL
"""  # noqa: S608  (texts of this package)


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    with path.open("rb") as file:
        return pq.read_table(file, schema=schema)
