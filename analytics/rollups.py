"""Keep roll-ups true to the releases: new windows are added up, and late ones again.

A day's file of hours is quick to make anew; a question of one cell of a year would open hundreds. A
month that is over is written once more, sorted by cell, into FOLDER/sums/hour/month=2026-11/. Its
file is always true to its days: it goes before one of them changes, and is made again later.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.releases.compaction import RollUps
from aggregator.releases.releases import MoreViews, open_duckdb, open_views
from aggregator.releases.window_files import COARSE, ROLL_UPS, need_store

from . import sql
from .exact_sums import coarse_outcomes_sql, coarse_sums_sql
from .rollup_files import (
    ALWAYS,
    DAYS,
    MONTHS,
    NEVER,
    OUTCOMES,
    SUMS,
    RollupPeriod,
    RollupsUnavailable,
    SettledHours,
    alone,
    dated,
    file_of,
    files_between,
    rows_sql,
    settled_ns,
    texts_sql,
    written_whole,
)

_MONTH: Final = slice(5, 12)  # of the name of a day's folder, date=2026-11-23, its month

_QUIET: Final = timedelta(days=1)  # so long after its end a month is hardly changed any more
_GROUP_ROWS: Final = 32_768  # of a row group: one cell of a month lies in one or two


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
    months = {
        start: path for path, start in dated(hours, MONTHS) if _lies_between(start, first, end)
    }
    start, last = period.span(first)[0], period.span(end)[0]
    found: dict[Path, None] = {}
    for path, day in dated(hours):
        if (month := day.replace(day=1)) in months:
            found[months[month]] = None
        elif start <= day <= last:
            found[path] = None
    return list(found)


def _lies_between(month: datetime, first: datetime, end: datetime) -> bool:
    """Whether each hour of a month starts in [first, end)."""
    start, after = RollupPeriod.DAY.span(month)
    return first <= start and after - RollupPeriod.HOUR.length < end


def months_to_write(hours: Path) -> dict[Path, list[Path]]:
    """Give the months that are over and have no file, with the files of their days."""
    days = dated(hours)
    found: dict[Path, list[Path]] = {}
    for path, day in days:
        if RollupPeriod.DAY.span(day)[1] + _QUIET <= days[-1][1]:
            found.setdefault(_month_of(path), []).append(path)
    return {month: files for month, files in found.items() if not month.exists()}


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
    """Give the file of a day's month, whose folder begins with the same year and month."""
    return day.parent.with_name(f"month={day.parent.name[_MONTH]}") / day.name


_ATTEMPTS: Final = 5
_AT_ONCE: Final = timedelta(days=7)
"""Of releases that are added up before it is kept that they are: a run that is cut off goes on."""
_KEY: Final = "series, cohort, period_start"
SCHEMAS: Final = {SUMS: sql.SUM_SCHEMA, OUTCOMES: sql.OUTCOME_SCHEMA}  # of the files of either kind

_MERGED: Final = {SUMS: sql.merged_sql, OUTCOMES: sql.merged_outcomes_sql}


def refresh(releases: Path, folder: Path, go_on: Callable[[], object] = lambda: None) -> int:
    """Bring the roll-ups of releases in a folder up to date; give how many hours had new windows.

    go_on       called before each week of releases; what it raises ends this
    Raises      NoStore, WindowTwice, RollupsUnavailable
    """
    need_store(releases)
    _begin_with(releases / ROLL_UPS, folder)
    if not (folder / COARSE).exists():
        with alone(folder):
            _make_coarse(folder)
    if not (SettledHours.of(releases).more_than(SettledHours.read(folder)) or _months(folder)):
        return 0
    hours_added = 0
    with alone(folder):
        known = SettledHours.read(folder)
        while hours := (found := SettledHours.of(releases)).more_than(known):
            go_on()
            first = min(hours)
            # Packs are of such weeks.
            end = datetime.fromisocalendar(*first.isocalendar()[:2], 1) + _AT_ONCE
            chosen = {hour for hour in hours if hour < end}
            _add_patiently(releases, folder, chosen)
            known = known.with_hours(found, chosen)
            known.write(folder)
            hours_added += len(chosen)
        _write_months(folder, go_on)
    return hours_added


def _begin_with(beside: Path, folder: Path) -> None:
    """Copy the roll-ups beside the releases to a reader that has none: windows may be gone."""
    if settled_ns(folder) or not settled_ns(beside):
        return
    with alone(folder):
        coarse = (beside / COARSE).exists()
        # Their hours first: what is added up meanwhile is then added up here again.
        hours = SettledHours.read(beside)
        # Files of months are true to days beside them, which may go on to change.
        for path in (path for kind in SCHEMAS for path in _files(beside / kind, DAYS)):
            with written_whole(folder / path.relative_to(beside)) as partial:
                shutil.copyfile(path, partial)
        if coarse:  # outcomes have no column that says so: sums would be rounded once more
            (folder / COARSE).touch()
        hours.write(folder)


def _files(of_kind: Path, *keys: str) -> list[Path]:
    folders = [of_kind / period.value for period in RollupPeriod]
    return [path for key in keys for folder in folders for path, _ in dated(folder, key)]


def _make_coarse(folder: Path) -> None:
    """Write files of before counts were coarse anew."""
    with open_duckdb() as database:
        for kind, coarse in ((SUMS, coarse_sums_sql), (OUTCOMES, coarse_outcomes_sql)):
            for path in _files(folder / kind, DAYS, MONTHS):
                names = pq.read_schema(path).names
                if kind == SUMS and "whole_bound" in names:
                    continue
                database.register("exact", pq.read_table(path, partitioning=None))
                rows = database.sql(coarse("SELECT * FROM exact"))
                with written_whole(path) as beside:
                    table = rows.order("ALL").to_arrow_table().select(SCHEMAS[kind].names)
                    pq.write_table(table.cast(SCHEMAS[kind]), beside, compression="zstd")
    (folder / COARSE).touch()


def _months(folder: Path) -> dict[Path, list[Path]]:
    return {
        month: days
        for kind in SCHEMAS
        for month, days in months_to_write(folder / kind / RollupPeriod.HOUR.value).items()
    }


def _write_months(folder: Path, go_on: Callable[[], object]) -> None:
    if not (months := _months(folder)):
        return
    with open_duckdb() as database:
        for month, days in months.items():
            go_on()
            schema = pq.read_schema(days[0])
            with (
                written_whole(month) as beside,
                pq.ParquetWriter(beside, schema, compression="zstd") as file,
            ):
                for rows in _by_section(database, rows_sql(days, schema), schema):
                    file.write_table(rows, row_group_size=_GROUP_ROWS)


def kept_roll_ups(releases: Path) -> RollUps:
    """Roll-ups beside the releases, for retention: they are all that is left of removed windows."""
    folder = releases / ROLL_UPS

    def bring_up_to_date(go_on: Callable[[], None]) -> None:
        try:
            refresh(releases, folder, go_on)
        except (duckdb.Error, pa.ArrowException) as error:
            raise RollupsUnavailable(f"releases at {releases}: {error}") from error

    return RollUps(bring_up_to_date, partial(has_rolled_up, releases, folder))


def has_rolled_up(releases: Path, folder: Path, series: str, first: date, last: date) -> bool:
    """Whether roll-ups have every window of a series' days, UTC: these may then be removed."""
    now, then = SettledHours.of(releases), SettledHours.read(folder)
    return not any(first <= hour.date() <= last for hour in now.more_than(then, series))


def _add_patiently(releases: Path, folder: Path, hours: Collection[datetime]) -> None:
    """Do as `_add`, again where a compaction moved files. Raises RollupsUnavailable at last."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            _add(releases, folder, hours)
        except duckdb.IOException as error:
            if not left:
                raise RollupsUnavailable(f"releases at {releases}: {error}") from error
        else:
            return


def _add(releases: Path, folder: Path, hours: Collection[datetime]) -> None:
    """Make the periods of some hours anew."""
    with open_views(releases, MoreViews(lambda _: None, [folder])) as database:
        lengths = _lengths(database, min(hours), max(hours) + RollupPeriod.HOUR.length)
        for period in RollupPeriod:
            starts = {period.start(hour) for hour in hours}
            series = sorted({name for name, length in lengths if period.holds(length)})
            if not series and period.shorter is None:
                continue
            # Windows that no shorter period holds, at once for all files: a pack's columns are
            # decoded for a whole week, however few days are read.
            for kind in SCHEMAS if series else ():
                rows = _of_windows(kind, period, min(starts), max(starts) + period.length, series)
                table = _windows_of(kind, period)
                database.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {rows}")
            for first, end in sorted({period.span(start) for start in starts}):
                within = sorted(start for start in starts if first <= start < end)
                for kind in SCHEMAS:
                    fresh = _fresh_sql(folder, kind, period, within, from_windows=bool(series))
                    _write(database, file_of(folder, kind, period, within[0]), fresh, kind)


def _lengths(
    database: duckdb.DuckDBPyConnection, first: datetime, end: datetime
) -> list[tuple[str, int]]:
    """Give each series that has windows which begin in [first, end), with their length."""
    chosen = _begun(first, end)
    found: list[tuple[str, int]] = database.execute(
        f"SELECT DISTINCT series, window_s FROM released WHERE {chosen} "  # noqa: S608
        f"UNION SELECT DISTINCT series, window_s FROM suppressed WHERE {chosen} "
        "AND window_s IS NOT NULL"
    ).fetchall()
    return found


def _begun(first: datetime, end: datetime) -> str:
    """The condition on windows that begin in [first, end); `date` is the folder of their files."""
    return (
        f"date >= DATE '{first:%Y-%m-%d}' AND date <= DATE '{end:%Y-%m-%d}' "
        f"AND window_start >= TIMESTAMP '{first}' AND window_start < TIMESTAMP '{end}'"
    )


def _windows_of(kind: str, period: RollupPeriod) -> str:
    return f"{kind}_of_{period.value}"


def _write(database: duckdb.DuckDBPyConnection, target: Path, fresh: str, kind: str) -> None:
    """Make some periods of a file anew, where that changes it."""
    schema = SCHEMAS[kind]
    kept = rows_sql([target] if target.exists() else [], schema)
    rows = database.sql(_joined_sql(kept, fresh)).to_arrow_table()
    rows = rows.select(schema.names).cast(schema)
    if target.exists():
        with target.open("rb") as file:
            if rows.equals(pq.read_table(file, schema=schema)):
                return
    _month_of(target).unlink(missing_ok=True)  # of hours, which the day is about to differ from
    with written_whole(target) as beside:
        pq.write_table(rows, beside, compression="zstd")


def _fresh_sql(
    folder: Path, kind: str, period: RollupPeriod, starts: list[datetime], *, from_windows: bool
) -> str:
    """Add up the periods that start at `starts`, from shorter ones and from releases."""
    first, end = starts[0], starts[-1] + period.length
    schema, merged = SCHEMAS[kind], _MERGED[kind]
    parts = [rows_sql([], schema)]
    chosen = f"WHERE period_start >= TIMESTAMP '{first}' AND period_start < TIMESTAMP '{end}'"
    if from_windows:
        parts.append(f"SELECT * FROM {_windows_of(kind, period)} {chosen}")  # noqa: S608
    if period.shorter is not None:
        files = files_between(folder, kind, period.shorter, first, end)
        within = f"SELECT * FROM ({rows_sql(files, schema)}) {chosen}"  # noqa: S608
        parts.append(merged(within, start=sql.bucket_sql("period_start", period.seconds)))
    names = ", ".join(schema.names)
    rows = " UNION ALL ".join(f"SELECT {names} FROM ({part})" for part in parts)  # noqa: S608
    wanted = ", ".join(f"TIMESTAMP '{start}'" for start in starts)
    # Periods between those that were asked for are left as they are.
    return f"SELECT {names} FROM ({merged(rows)}) WHERE period_start IN ({wanted})"  # noqa: S608


def _of_windows(
    kind: str, period: RollupPeriod, first: datetime, end: datetime, series: Sequence[str]
) -> str:
    """Add up the windows of some series that begin in [first, end)."""
    shortest, longest = period.lengths
    chosen = (
        f"{_begun(first, end)} AND series IN ({texts_sql(series)}) "
        f"AND window_s >= {shortest} AND window_s <= {longest}"
    )
    if kind == OUTCOMES:
        return sql.outcomes_sql(chosen, period.seconds)
    return sql.windows_sql(f"SELECT * FROM with_basis WHERE {chosen}", period.seconds)  # noqa: S608


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
