"""Quantiles of released histograms: below which value a fraction of the whole lies.

With C_k the sum of the bins up to k and D that of all, F_k = C_k / D has a Fieller interval whose
covariance is the variance of C_k, as bins have noise of their own. Bin k may hold the quantile q
where the lower end of F_(k-1) is below q and the upper end of F_k is not: two tests of 2.5 %, so
the bins that stay hold it 95 times in 100 or more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import duckdb
import pandas as pd
import pyarrow as pa

from aggregator.releases.releases import Meanings, open_duckdb
from aggregator.statistics.ratios import shares_sql
from wire.catalogue import Catalogue

from .sql import CELL_MEANINGS

CALL: Final = "quantiles"  # what SQL calls: `FROM quantiles('weeks', 0.5)`

_OF: Final = ("series", "cohort", "period_start", "period_s", "section")
_ABOUT: Final = (
    "suppressed", "reason", "windows", "windows_suppressed", "coverage", "hosts", "until",
)  # fmt: skip
QUANTILE_MEANINGS: Final[Meanings] = {
    **{name: CELL_MEANINGS[name] for name in _OF},
    "quantile": (pa.float64(), "fraction of the histogram's whole that lies below value"),
    "value": (pa.float64(), "within its bin by a straight line; NULL: the whole is itself noise"),
    "low": (pa.float64(), "lower end of its 95 % interval, which is made of whole bins"),
    "high": (pa.float64(), "upper end of that interval; infinity: the last bin has no end"),
    "unit": (pa.string(), "unit of value, low and high"),
    **{name: CELL_MEANINGS[name] for name in _ABOUT},
}
"""Column -> Arrow type and meaning of `quantiles`, in order."""


def create_call(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Let SQL that calls `quantiles` do so, over a view's name and a fraction."""
    if CALL in sql.lower():
        rows = quantiles_sql("FROM query_table(of_view)", "fraction")
        database.execute(f"CREATE TEMP MACRO {CALL}(of_view, fraction) AS TABLE {rows}")


def quantiles(rows: pd.DataFrame, fractions: Sequence[float]) -> pd.DataFrame:
    """Give quantiles of the histograms in a frame.

    rows        columns of `sql.CELL_MEANINGS`; what is no histogram is passed over
    fractions   between 0 and 1
    Returns     QUANTILE_MEANINGS, a row for each histogram and fraction
    Raises      ValueError
    """
    for fraction in fractions:
        if not 0 < fraction < 1:
            raise ValueError(f"quantile: expected fractions between 0 and 1, got {fraction}")
    parts = (f"FROM ({quantiles_sql('FROM rows', repr(float(at)))})" for at in fractions)
    with open_duckdb() as database:
        database.register("rows", rows)
        found: pd.DataFrame = database.execute(
            f"FROM ({' UNION ALL '.join(parts)}) ORDER BY ALL"
        ).df()
    return found.astype({"cohort": "Int64"})


@lru_cache(maxsize=1)
def _by_powers() -> str:
    """Names of the sections whose bins are powers of two, in SQL."""
    sections = Catalogue.load().sections
    names = [s.name for s in sections if s.bins is not None and s.bins.scale == "log2"]
    return ", ".join(f"'{name}'" for name in names) or "NULL"


def quantiles_sql(rows: str, fraction: str) -> str:
    """Quantiles of the histograms of rows, in SQL.

    rows        rows of cells, in SQL
    fraction    between 0 and 1, in SQL
    Source      Fieller 1954 for F; the middle of its running maximum and minimum is what grows
                from bin to bin, and is read by a straight line, of powers of two in logarithms
    """
    of, about = ", ".join(_OF), ", ".join(f"any_value({name}) AS {name}" for name in _ABOUT)
    sums = f"""
SELECT *, vx AS cov, 0 AS extra, 0 AS off FROM (
    SELECT {of}, bin, bin_low, bin_high, bin_unit, {", ".join(_ABOUT)},
        sum(value) OVER (same ORDER BY bin) AS x, sum(value) OVER same AS d,
        sum(standard_error ** 2) OVER (same ORDER BY bin) AS vx,
        sum(standard_error ** 2) OVER same AS vd
    FROM ({rows}) WHERE bin IS NOT NULL WINDOW same AS (PARTITION BY {of})
)
"""  # noqa: S608  (texts of this package)
    return f"""
SELECT {of},
    CASE WHEN {fraction} > 0 AND {fraction} < 1 THEN CAST({fraction} AS DOUBLE)
        ELSE error('{CALL}: expected a fraction between 0 and 1') END AS quantile,
    any_value(
        CASE WHEN bin_high IS NULL THEN bin_low
            WHEN section IN ({_by_powers()}) THEN bin_low * (bin_high / bin_low) ** within
            ELSE bin_low + (bin_high - bin_low) * within END
    ) FILTER (before < {fraction} AND level >= {fraction}) AS value,
    min(bin_low) FILTER (possible) AS low,
    max(coalesce(bin_high, 'infinity'::DOUBLE)) FILTER (possible) AS high,
    any_value(bin_unit) AS unit, {about}
FROM (
    SELECT *, ({fraction} - before) / (level - before) AS within,
        lag(share_low, 1, 0.0) OVER (same ORDER BY bin) < {fraction} AND share_high >= {fraction}
            AS possible
    FROM (
        SELECT *, lag(level, 1, 0.0) OVER (PARTITION BY {of} ORDER BY bin) AS before
        FROM (
            SELECT *, (
                max(share) OVER (same ORDER BY bin) + min(share) OVER (
                    same ORDER BY bin ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
                )
            ) / 2 AS level
            FROM ({shares_sql(sums)}) WINDOW same AS (PARTITION BY {of})
        )
    ) WINDOW same AS (PARTITION BY {of})
) GROUP BY {of}
"""  # noqa: S608  (texts of this package)
