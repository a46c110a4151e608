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

from aggregator import releases
from aggregator.release_sources import Meanings, literal
from aggregator.releases import MoreViews

from .cells_sql import cells_sql
from .outcomes_sql import OUTCOME_MEANINGS
from .rollup_files import OUTCOMES, SUMS, rows_sql
from .rollup_periods import RollupPeriod
from .rollups import SCHEMAS
from .sums_sql import add_functions

Frames = Mapping[str, Callable[[], pd.DataFrame]]
"""Views that are made of frames, by name; each is called only where a query names it."""

PERIOD_VIEWS: Final = {period.view: period for period in RollupPeriod}
OUTCOMES_VIEW: Final = "outcomes"

VIEW_OUTCOME_MEANINGS: Final[Meanings] = {
    "period": (pa.string(), "hour, day or week"),
    **OUTCOME_MEANINGS,
    "coverage": (pa.float64(), "the windows' length, as a fraction of the period"),
}


def query(
    sql: str,
    folder: Path,
    rollups: Path,
    frames: Frames,
    look: Callable[[], None],
) -> pd.DataFrame:
    """Run one SELECT over every view of a folder of releases.

    rollups     folder of its roll-ups
    frames      views beside them
    look        brings the roll-ups up to date; called where the query names them
    Raises      QueryRefused, QueryForbidden
    """
    own = {*PERIOD_VIEWS, OUTCOMES_VIEW, *frames}
    named, alone = _named(sql, own)
    if not named:
        return releases.query(sql, folder)
    look()

    def create(database: duckdb.DuckDBPyConnection) -> None:
        _create(database, rollups, named)
        for name in named & set(frames):
            database.register(name, frames[name]())

    return releases.query(sql, folder, MoreViews(create, [rollups], alone=alone))


def _named(sql: str, own: set[str]) -> tuple[set[str], bool]:
    """Give which of some views a query names, and whether it surely names no others."""
    with duckdb.connect(":memory:") as database:
        try:
            names = {name.lower() for name in database.get_table_names(sql)}
        except duckdb.Error:  # it binds what it parses, without our tables
            return own & set(re.findall(r"\w+", sql.lower())), False
    return names & own, names <= own


def _create(database: duckdb.DuckDBPyConnection, rollups: Path, named: set[str]) -> None:
    if named & set(PERIOD_VIEWS):
        add_functions(database)
    for name in named & set(PERIOD_VIEWS):
        period = PERIOD_VIEWS[name]
        cells = cells_sql(
            _all(rollups, SUMS, period), _all(rollups, OUTCOMES, period), period.seconds
        )
        database.execute(f"CREATE VIEW {name} AS {cells}")
    if OUTCOMES_VIEW in named:
        parts = [
            f"SELECT {literal(period.value)} AS period, *, "  # noqa: S608
            f"covered_s / {period.seconds} AS coverage FROM ({_all(rollups, OUTCOMES, period)})"
            for period in RollupPeriod
        ]
        database.execute(f"CREATE VIEW {OUTCOMES_VIEW} AS {' UNION ALL '.join(parts)}")


def _all(rollups: Path, kind: str, period: RollupPeriod) -> str:
    """Every row of a period, in SQL."""
    files = sorted((rollups / kind / period.value).glob("date=*/rows.parquet"))
    return rows_sql(files, SCHEMAS[kind])
