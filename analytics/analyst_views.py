"""SQL over releases and what is made of them: roll-ups, `outcomes`, `changes`, `costs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pandas as pd

from aggregator.releases.releases import literal

from .quantiles_sql import create_call
from .rollup_files import OUTCOMES, SUMS, RollupPeriod, rows_sql
from .rollups import SCHEMAS, files_to_read
from .sql import cells_sql

Frames = Mapping[str, Callable[[], pd.DataFrame]]
"""Views that are made of frames, by name; each is called only where a query names it."""

PERIOD_VIEWS: Final = {period.view: period for period in RollupPeriod}
OUTCOMES_VIEW: Final = "outcomes"
_WHOLE: Final = ("cohort", "bin")


def with_whole_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Give a frame its numbers that are whole, also where some of them are missing."""
    return frame.astype({name: "Int64" for name in _WHOLE if name in frame})


def views_named(
    sql: str, own: set[str], database: duckdb.DuckDBPyConnection
) -> tuple[set[str], bool]:
    """Give which of some views a query names, and whether it surely names no others."""
    with database.cursor() as cursor:
        try:
            create_call(cursor, sql)  # the views that it is given are found through it
            names = {name.lower() for name in cursor.get_table_names(sql)}
        except duckdb.Error:  # it binds what it parses, without our tables
            return own & set(re.findall(r"\w+", sql.lower())), False
    return names & own, names <= own


def create_views(
    database: duckdb.DuckDBPyConnection, rollups: Path, named: set[str], *, judged: bool
) -> None:
    """Make the views of roll-ups that a query names; judged as `cells_sql` has it."""

    def every(kind: str, period: RollupPeriod) -> str:
        return rows_sql(files_to_read(rollups, kind, period), SCHEMAS[kind])

    for name in named & set(PERIOD_VIEWS):
        period = PERIOD_VIEWS[name]
        sums, outcomes = every(SUMS, period), every(OUTCOMES, period)
        released = f"FROM ({outcomes}) WHERE outcome = 'released'"
        cells = cells_sql(sums, outcomes, period.seconds, released=released, judged=judged)
        database.execute(f"CREATE TEMP VIEW {name} AS {cells}")
    if OUTCOMES_VIEW in named:
        parts = [
            f"SELECT {literal(period.value)} AS period, *, "  # noqa: S608
            f"covered_s / {period.seconds} AS coverage FROM ({every(OUTCOMES, period)})"
            for period in RollupPeriod
        ]
        database.execute(f"CREATE TEMP VIEW {OUTCOMES_VIEW} AS {' UNION ALL '.join(parts)}")


def finite(frame: pd.DataFrame) -> pd.DataFrame:
    """Give what is no finite number as missing, also in lists and structs: JSON has neither."""
    found = frame.copy(deep=False)
    for at, kind in enumerate(frame.dtypes):
        column = frame.iloc[:, at]
        if kind.kind == "f":
            found.isetitem(at, column.where(np.isfinite(column)).array)
        elif kind.kind == "M":  # DuckDB says infinity by a moment beyond years
            found.isetitem(at, column.where(column.dt.year.between(1, 9999)).array)
        elif kind.kind == "O":
            found.isetitem(at, column.map(_finite).array)
    return found


def _finite(value: object) -> object:
    if isinstance(value, np.ndarray | list):
        return [_finite(one) for one in value]
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float | np.floating) and not np.isfinite(value) else value
