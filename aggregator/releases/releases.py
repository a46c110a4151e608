"""Read released Parquet, in the reader's own process; the Leader's DuckDB file is never opened.

SQL runs in an in-memory DuckDB that can read the releases folder and nothing else, and may only
select: no other file, no network, no extension, no write.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import duckdb
import pandas as pd
import pyarrow as pa

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE, judged_sql
from aggregator.statistics.ratios import BELOW_NOISE_ERRORS, Z, shares_sql

from .cause_files import CAUSE_MEANINGS
from .cause_files import FOLDER as CAUSES_FOLDER
from .exact_counts import coarse_hosts_sql, coarse_releases_sql
from .packs import CELLS, MEMBER_SCHEMA, MEMBERS, PLAIN, Listing, list_folder
from .release_files import BASIS, MEANINGS, SUPPRESSED_FOLDER, SUPPRESSED_MEANINGS
from .window_files import NoStore, need_store

_UNITS: Final = "SELECT *, steps * scale AS value, sqrt(variance) AS standard_error FROM ({packed})"
_INPUTS: Final = f"""
SELECT *, value AS x, whole AS d, variance AS vx, whole_variance AS vd, covariance AS cov,
    sampling AS extra, whole_bound AS off
FROM ({_UNITS})
"""

DERIVED: Final = f"""
SELECT series, cohort, window_start, window_s, section, cell, unit, kind, value, standard_error,
    value - {Z} * standard_error AS low,
    value + {Z} * standard_error AS high,
    share, share_low, share_high,
    value < {BELOW_NOISE_ERRORS!r}::DOUBLE * standard_error AS below_noise,
    bias_bound, n_hosts, n_bound, epsilon, delta, domain, released_at, rejections,
    {", ".join(BASIS)}
FROM ({shares_sql(_INPUTS)})
"""
"""To be formatted with `packed`, which selects `series` and `packs.CELL_SCHEMA`.

The arithmetic of `statistics.estimate` in the same order of operations: a window reads the same to
the last bit before and after it is packed.
"""


Meanings = Mapping[str, tuple[pa.DataType, str]]

_SQL_TYPES: Final = {
    "string": "VARCHAR",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp[us]": "TIMESTAMP",
}
_SINGLE: Final = "{'series': VARCHAR, 'date': DATE}"
_PACKED: Final = "{'series': VARCHAR, 'period': VARCHAR, 'generation': VARCHAR}"
"""What the names of the folders say."""
_DAY: Final = "CAST(window_start AS DATE) AS date"


_WITH_BASIS: Final = MEANINGS | {name: (kind, "") for name, kind in BASIS.items()}


def released(listing: Listing) -> str:
    """Select the columns of releases and `date` of a listing, whatever files they lie in."""
    return f"SELECT {', '.join(MEANINGS)}, date FROM ({with_basis(listing)})"


def with_basis(listing: Listing) -> str:
    """Select what the numbers follow from as well."""
    as_they_are = rows(listing, _WITH_BASIS)
    parts = [as_they_are]
    if cells := listing.files(CELLS, exact=False):
        parts.append(_packed(f"SELECT * FROM {_read_sql(cells, _PACKED)}"))
    if not listing.coarse:
        parts[0] = f"SELECT * FROM ({as_they_are}) WHERE n_bound IS NOT NULL"
        exact = [f"SELECT * FROM ({as_they_are}) WHERE n_bound IS NULL"]
        if cells := listing.files(CELLS, exact=True):
            exact.append(_packed(exact_cells_sql(f"FROM {_read_sql(cells, _PACKED)}")))
        parts.append(f"SELECT * FROM ({coarse_releases_sql(_union(exact))})")
    return _union(parts)


def _packed(cells: str) -> str:
    return f"SELECT *, {_DAY} FROM ({DERIVED.format(packed=cells)})"


def exact_cells_sql(cells: str) -> str:
    """Give cells of a pack of before counts were coarse the columns that they lack."""
    return f"SELECT *, NULL::INTEGER AS n_bound, 0::DOUBLE AS whole_bound {cells}"


def rows(listing: Listing, meanings: Meanings) -> str:
    """Select these columns and `date` of the files that have them as they are."""
    columns = {name: _SQL_TYPES[str(kind)] for name, (kind, _) in meanings.items()}
    parts = [_no_rows(columns | {"date": "DATE"})]
    if singles := [single.path for single in listing.singles]:
        parts.append(f"SELECT * FROM {_read_sql(singles, _SINGLE, by_name=True)}")
    if plain := listing.files(PLAIN):
        parts.append(f"SELECT *, {_DAY} FROM {_read_sql(plain, _PACKED, by_name=True)}")
    # Files of before a column have it empty, also where no file has it.
    return f"SELECT {', '.join([*meanings, 'date'])} FROM ({_union(parts)})"


def suppressed(listing: Listing) -> str:
    """Select suppressed windows of a listing."""
    return coarse_hosts_sql(rows(listing, SUPPRESSED_MEANINGS), "n_min")


def ends(listing: Listing) -> str:
    """Select the members of a listing's packs: a row for each window, and its series."""
    if not listing.packs:
        columns = {"series": "VARCHAR"} | {f.name: _SQL_TYPES[str(f.type)] for f in MEMBER_SCHEMA}
        return _no_rows(columns)
    names = ", ".join(MEMBER_SCHEMA.names)
    parts = [
        f"SELECT *{lacking} FROM {_read_sql(files, _PACKED)}"
        for exact, lacking in ((False, ""), (True, ", NULL::INTEGER AS n_bound"))
        if (files := listing.files(MEMBERS, exact=exact))
    ]
    members = _union(parts)
    return f"SELECT series, {names} FROM ({coarse_hosts_sql(members, 'NULL')})"


def _newest(listing: Listing, packed: Iterable[tuple[str, int, datetime]]) -> str:
    """Select the newest window of each series and cohort of a listing.

    packed      series, cohort and start of the newest window that packs hold
    """
    latest = {(series, cohort): start for series, cohort, start in packed}
    for single in listing.singles:
        key = single.series, single.cohort
        latest[key] = max(single.window_start, latest.get(key, single.window_start))
    singles = [
        single
        for single in listing.singles
        if latest[single.series, single.cohort] == single.window_start
    ]
    days = {(series, start.date()) for (series, _), start in latest.items()}
    packs = [
        pack
        for pack in listing.packs
        if any(series == pack.series and pack.covers(day) for series, day in days)
    ]
    windows = ", ".join(
        f"({literal(series)}, {cohort}, TIMESTAMP '{start}')"
        for (series, cohort), start in latest.items()
    )
    condition = f"(series, cohort, window_start) IN ({windows})" if windows else "false"
    chosen = replace(listing, singles=tuple(singles), packs=tuple(packs))
    return f"FROM ({released(chosen)}) WHERE {condition}"


def literal(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def escaped(path: str) -> str:
    """A path in which glob's own characters stand for themselves."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def _read_sql(files: Sequence[Path], types: str, *, by_name: bool = False) -> str:
    paths = ", ".join(literal(escaped(str(path))) for path in files)
    options = f"hive_partitioning = true, hive_types = {types}"
    return f"read_parquet([{paths}], {options}, union_by_name = {str(by_name).lower()})"


def _union(parts: Sequence[str]) -> str:
    return " UNION ALL BY NAME ".join(parts)


def _no_rows(columns: Mapping[str, str]) -> str:
    nulls = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns.items())
    return f"SELECT {nulls} WHERE false"


Moment = datetime | date | str | int | float
"""A time: a datetime (naive means UTC), a date, ISO text, or unix seconds."""

_ATTEMPTS: Final = 20
"""At a folder that a compaction goes through meanwhile; each takes the folder as it is then."""


_SIGNIFICANT = f"""
SELECT * REPLACE (
    CASE WHEN q_value <= {FALSE_DISCOVERY_RATE} THEN value END AS value,
    CASE WHEN q_value <= {FALSE_DISCOVERY_RATE} THEN share END AS share
)
"""


_WINDOWS = """
SELECT series, cohort, window_start, any_value(window_s) AS window_s, 'released' AS outcome,
    NULL::VARCHAR AS reason, any_value(n_hosts) AS n_hosts, NULL::INTEGER AS n_min,
    any_value(released_at) AS settled_at
FROM ({singles}) GROUP BY series, cohort, window_start
UNION ALL
SELECT series, cohort, window_start, window_s, 'released', NULL, n_hosts, NULL, settled_at
FROM ({packed})
UNION ALL
SELECT series, cohort, window_start, window_s, 'suppressed', reason, n_hosts, n_min, settled_at
FROM suppressed
"""

WINDOW_MEANINGS: Meanings = {
    **{
        name: SUPPRESSED_MEANINGS[name] for name in ("series", "cohort", "window_start", "window_s")
    },
    "outcome": (pa.string(), "released or suppressed"),
    **{name: SUPPRESSED_MEANINGS[name] for name in ("reason", "n_hosts", "n_min", "settled_at")},
}

_ENDLESS = """
WITH known AS (SELECT DISTINCT series, cohort, window_start, window_s FROM windows),
spans AS (
    SELECT series, cohort, any_value(window_s) AS window_s,
        min(window_start) AS first, max(window_start) AS last
    FROM known WHERE window_s IS NOT NULL GROUP BY series, cohort
),
expected AS (
    SELECT series, cohort, unnest(range(first, last, to_seconds(window_s))) AS window_start
    FROM spans
)
SELECT expected.* FROM expected ANTI JOIN known USING (series, cohort, window_start) ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class MoreViews:
    """Views that a database has beside those of the releases.

    create      makes them, while the database may still read anything
    folders     that they read when they are asked
    alone       nothing else is asked for: the views of the releases are not made
    database    what `open_views` opened with the same folders and `alone`, to be asked again:
                they are made in a cursor of it; None: in a database of their own
    """

    create: Callable[[duckdb.DuckDBPyConnection], None]
    folders: Sequence[Path] = ()
    alone: bool = False
    database: duckdb.DuckDBPyConnection | None = None


class QueryRefused(ValueError):
    """SQL that DuckDB cannot run; the message says why."""


class QueryForbidden(QueryRefused):
    """SQL that is not one reading statement, or reads outside the folder."""


def read_releases(
    folder: str | os.PathLike[str],
    *,
    series: str | None = None,
    section: str | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> pd.DataFrame:
    """Return released cells, one row each, by window, section and cell.

    folder          the Leader's folder of released Parquet
    series, section only this one
    since, until    windows that start in [since, until)
    Returns         a DataFrame with the columns of `query --schema` and `date`
    Raises          NoStore, WindowTwice
    """
    return _read("releases", folder, series, section, since, until)


def read_causes(
    folder: str | os.PathLike[str],
    *,
    section: str | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> pd.DataFrame:
    """Return the Leader's root-cause tables, one row a cause; arguments as `read_releases`."""
    return _read("causes", folder, None, section, since, until)


def read_windows(
    folder: str | os.PathLike[str],
    *,
    series: str | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> pd.DataFrame:
    """Return how each window ended, released or suppressed and why; as `read_releases`."""
    return _read("windows", folder, series, None, since, until)


def windows_without_an_end(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the windows between the first and the last of a series that did not end.

    Returns         a DataFrame of series, cohort, window_start; empty where every window was
                    released or suppressed
    """
    return _run(folder, _ENDLESS)


def query(sql: str, folder: str | os.PathLike[str], more: MoreViews | None = None) -> pd.DataFrame:
    """Run one SELECT over the views `releases`, `released`, `latest`, `windows` and `causes`.

    `releases` has every released cell; `released` has the same without `q_value`, so that one cell
    of a long time is quick to read; `latest` has the newest window of every series and cohort,
    with value and share NULL where they are not significant; `windows` says how every window
    ended; `causes` has the root-cause tables.
    more        views beside them
    Raises      QueryRefused, QueryForbidden, NoStore, WindowTwice
    """
    try:
        return _run(folder, sql, more=more, by_user=True)
    except duckdb.PermissionException as error:
        raise QueryForbidden(f"a query reads the releases folder alone: {error}") from error
    except duckdb.Error as error:
        raise QueryRefused(str(error).strip()) from error


def _read(
    view: str,
    folder: str | os.PathLike[str],
    series: str | None,
    section: str | None,
    since: Moment | None,
    until: Moment | None,
) -> pd.DataFrame:
    conditions: list[tuple[str, object]] = [
        ("series = ?", series),
        ("section = ?", section),
        ("window_start >= ?", None if since is None else moment(since)),
        ("window_start < ?", None if until is None else moment(until)),
    ]
    chosen = [(text, value) for text, value in conditions if value is not None]
    where = f"WHERE {' AND '.join(text for text, _ in chosen)}" if chosen else ""
    # View and condition are made of texts of this module; what the caller gave is bound.
    sql = f"SELECT * FROM {view} {where} ORDER BY ALL"
    return _run(folder, sql, [value for _, value in chosen])


def moment(when: Moment) -> datetime:
    """Return naive UTC, as released timestamps are; raises ValueError when text is not ISO 8601."""
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    elif isinstance(when, int | float):
        when = datetime.fromtimestamp(when, UTC)
    if not isinstance(when, datetime):
        when = datetime(when.year, when.month, when.day, tzinfo=UTC)
    return when.astimezone(UTC).replace(tzinfo=None) if when.tzinfo else when


def _must_only_read(statements: Sequence[duckdb.Statement]) -> None:
    if len(statements) != 1:
        raise QueryRefused(f"expected one SQL statement, got {len(statements)}")
    # EXPLAIN ANALYZE would carry out what it explains.
    if statements[0].type != duckdb.StatementType.SELECT:
        got = statements[0].type.name
        raise QueryForbidden(f"expected a SELECT, got {got}: a query can only read")


def _run(
    folder: str | os.PathLike[str],
    sql: str,
    values: Sequence[object] = (),
    *,
    more: MoreViews | None = None,
    by_user: bool = False,
) -> pd.DataFrame:
    """Run a statement over the views that it names.

    A folder that is compacted meanwhile is read anew: files that it moved are not there any more.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            with open_views(folder, more, sql) as database:
                if by_user:
                    _must_only_read(database.extract_statements(sql))
                return database.execute(sql, list(values)).df()
        except NoStore:
            raise
        except (duckdb.IOException, FileNotFoundError):
            if not left:
                raise
    raise AssertionError("the last attempt returns or raises")


def open_duckdb(path: str | os.PathLike[str] = ":memory:") -> duckdb.DuckDBPyConnection:
    """Open DuckDB without its progress bar, which would write into logs and notebooks.

    Where DuckDB itself has switched it off, in a notebook without `ipywidgets`, nothing is set:
    DuckDB refuses any change there.
    """
    database = duckdb.connect(os.fspath(path))  # noqa: TID251  (the one place)
    try:
        shown = database.execute("SELECT current_setting('enable_progress_bar')").fetchall()
        if shown == [(True,)]:
            database.execute("SET enable_progress_bar = false")
    except BaseException:
        database.close()
        raise
    return database


def open_views(
    folder: str | os.PathLike[str], more: MoreViews | None = None, sql: str | None = None
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database that sees the folder and nothing else.

    sql     only views of releases that it names are made, as each opens files; None: all
    Raises  NoStore
    """
    root = Path(folder).resolve()
    if more is None or not more.alone:
        need_store(root)
    kept = None if more is None else more.database
    database = open_duckdb() if kept is None else kept.cursor()
    try:
        if kept is None and (more is None or not more.alone):
            _create_views(database, root, sql)
        if more is not None:
            more.create(database)
        if kept is None:
            _close_to_all_but(database, [root, *(more.folders if more is not None else ())])
    except BaseException:
        database.close()
        raise
    return database


def _create_views(database: duckdb.DuckDBPyConnection, root: Path, sql: str | None) -> None:
    named = {view for view in _VIEWS if sql is None or view in sql.lower()}
    named |= {part for view in named for part in _MADE_OF.get(view, ())}
    for view, select in _VIEWS.items():
        if view in named:
            database.execute(f"CREATE VIEW {view} AS {select(database, root)}")


def _close_to_all_but(database: duckdb.DuckDBPyConnection, folders: Sequence[Path]) -> None:
    # DuckDB checks the pattern as written, and the files that it finds.
    paths = [path for folder in folders for path in (str(folder), escaped(str(folder)))]
    allowed = ", ".join(literal(f"{path}/") for path in paths)
    database.execute(f"SET allowed_directories = [{allowed}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _causes(_: duckdb.DuckDBPyConnection, root: Path) -> str:
    # Tables of before counts were coarse tell them; the Leader makes them anew.
    causes = rows(list_folder(root / CAUSES_FOLDER), CAUSE_MEANINGS)
    causes = f"SELECT * FROM ({causes}) WHERE n_bound IS NOT NULL"
    return judged_sql(causes, "hosts", "corrected", "series, cohort, window_start, section")


def _latest(database: duckdb.DuckDBPyConnection, root: Path) -> str:
    listing = list_folder(root)
    starts = f"SELECT series, cohort, max(window_start) FROM ({ends(listing)}) GROUP BY ALL"
    chosen = _newest(listing, database.execute(starts).fetchall())
    return f"{_SIGNIFICANT} FROM ({judged_sql(chosen, 'value', 'false')})"


def _windows(_: duckdb.DuckDBPyConnection, root: Path) -> str:
    listing = list_folder(root)
    singles = released(replace(listing, packs=()))
    return _WINDOWS.format(singles=singles, packed=ends(listing))


_VIEWS: Final[dict[str, Callable[[duckdb.DuckDBPyConnection, Path], str]]] = {
    "released": lambda _, root: released(list_folder(root)),
    "with_basis": lambda _, root: with_basis(list_folder(root)),
    "releases": lambda *_: judged_sql("FROM released", "value", "false"),
    "latest": _latest,
    "causes": _causes,
    "suppressed": lambda _, root: suppressed(list_folder(root / SUPPRESSED_FOLDER)),
    "windows": _windows,
}
"""In an order in which each finds those that it is made of."""
_MADE_OF: Final = {"releases": ("released",), "windows": ("suppressed",)}
