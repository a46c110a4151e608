"""SQL over releases and what is made of them: the views of the aggregator, and those of this room.

`hours`, `days` and `weeks` are roll-ups, `outcomes` says how windows ended, `changes` compares the
newest whole week with the one before, `costs` has causes as hosts, GPU hours and money.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import duckdb
import pandas as pd
import pyarrow as pa

from aggregator.releases import releases
from aggregator.releases.releases import Meanings, MoreViews, QueryRefused, literal

from .quantiles_sql import create_call
from .rollup_files import OUTCOMES, SUMS, RollupPeriod, rows_sql
from .rollups import SCHEMAS, files_to_read
from .sql import NOT_JUDGED, OUTCOME_MEANINGS, cells_sql

Frames = Mapping[str, Callable[[], pd.DataFrame]]
"""Views that are made of frames, by name; each is called only where a query names it."""

PERIOD_VIEWS: Final = {period.view: period for period in RollupPeriod}
OUTCOMES_VIEW: Final = "outcomes"
_WHOLE: Final = ("cohort", "bin")

_JUDGEMENTS: Final = re.compile(r"\*|q_value|told", re.IGNORECASE)
"""What a query says that asks for them."""

VIEW_OUTCOME_MEANINGS: Final[Meanings] = {
    "period": (pa.string(), "hour, day or week"),
    **OUTCOME_MEANINGS,
    "coverage": (pa.float64(), "the windows' length, as a fraction of the period"),
}


def with_whole_numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Give a frame its numbers that are whole, also where some of them are missing."""
    return frame.astype({name: "Int64" for name in _WHOLE if name in frame})


def query(
    sql: str,
    folder: Path,
    rollups: Path,
    frames: Frames,
    look: Callable[[], None],
    database: duckdb.DuckDBPyConnection,
) -> pd.DataFrame:
    """Run one SELECT over every view of a folder of releases and over `frames` beside them.

    look        brings the roll-ups up to date; called where the query names them
    database    of `open_views`, which sees the roll-ups alone; views are a cursor's own
    Raises      QueryRefused, QueryForbidden
    """
    own = {*PERIOD_VIEWS, OUTCOMES_VIEW, *frames}
    named, alone = views_named(sql, own, database)
    if not named:
        more = MoreViews(lambda database: create_call(database, sql))
        return releases.query(sql, folder, more)
    look()

    made = {name: frames[name]() for name in named & set(frames)}

    def ask(*, judged: bool) -> pd.DataFrame:
        def create(database: duckdb.DuckDBPyConnection) -> None:
            _create(database, rollups, named, judged=judged)
            for name, frame in made.items():
                database.register(name, frame)
            create_call(database, sql)

        more = MoreViews(create, [rollups], alone, database if alone else None)
        return releases.query(sql, folder, more)

    if not _JUDGEMENTS.search(sql):
        try:
            return ask(judged=False)
        except QueryRefused as refused:  # by a name that the text does not show
            if NOT_JUDGED not in str(refused):
                raise
    return ask(judged=True)


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


def _create(
    database: duckdb.DuckDBPyConnection, rollups: Path, named: set[str], *, judged: bool
) -> None:
    for name in named & set(PERIOD_VIEWS):
        period = PERIOD_VIEWS[name]
        outcomes = _all(rollups, OUTCOMES, period)
        released = f"FROM ({outcomes}) WHERE outcome = 'released'"
        cells = cells_sql(
            _all(rollups, SUMS, period), outcomes, period.seconds, released=released, judged=judged
        )
        database.execute(f"CREATE TEMP VIEW {name} AS {cells}")
    if OUTCOMES_VIEW in named:
        parts = [
            f"SELECT {literal(period.value)} AS period, *, "  # noqa: S608
            f"covered_s / {period.seconds} AS coverage FROM ({_all(rollups, OUTCOMES, period)})"
            for period in RollupPeriod
        ]
        database.execute(f"CREATE TEMP VIEW {OUTCOMES_VIEW} AS {' UNION ALL '.join(parts)}")


def _all(rollups: Path, kind: str, period: RollupPeriod) -> str:
    return rows_sql(files_to_read(rollups, kind, period), SCHEMAS[kind])
