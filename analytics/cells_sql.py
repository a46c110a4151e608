"""SQL that reads sums as numbers with errors, and says what was suppressed: rows for people."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa

from aggregator.releases.releases import Meanings, literal
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE, judged_sql
from aggregator.statistics.ratios import normal_quantile, shares_sql
from aggregator.statistics.statistics import BIAS_CONFIDENCE
from wire.catalogue import LEFT_OUT, Bins, Catalogue

from .sums_sql import model_sql

LAUNCHES: Final = "launch_share"
"""The measure of hosts that see launches alone."""
NOISE_REASON: Final = "whole_is_noise"
"""Why a share has no number: what it divides by is itself noise."""

BY_LAUNCHES: Final = "_by_launches"
"""Ends the name of what a family has by launches, beside what it has by GPU time."""

CELL_MEANINGS: Final[Meanings] = {
    "series": (pa.string(), "task series"),
    "cohort": (pa.int32(), "cohort, a static part of the fleet; NULL: all of them together"),
    "period_start": (pa.timestamp("us"), "first moment of the hour, day, week or eight weeks, UTC"),
    "period_s": (pa.int32(), "its length, seconds"),
    "section": (pa.string(), "catalogue section"),
    "cell": (pa.string(), "cell of the section, as the catalogue names it"),
    "model": (pa.string(), "its GPU model, empty where the section is not by model"),
    "measure": (pa.string(), "its measure, empty where it has none"),
    "name": (
        pa.string(),
        f"what it is, once in its section and model; `{BY_LAUNCHES}` ends a launch share",
    ),
    "bin": (pa.int32(), "place of a histogram's bin, from 0"),
    "bin_low": (pa.float64(), "where the bin begins; the first one has what is less, too"),
    "bin_high": (pa.float64(), "where it ends, itself left out; NULL: the last bin has no end"),
    "bin_unit": (pa.string(), "unit of bin_low and bin_high"),
    "unit": (pa.string(), "unit of value, standard_error, low and high"),
    "kind": (pa.string(), "mix, histogram, mean or indicators"),
    "value": (
        pa.float64(),
        "sum over hosts and released windows; of a mean, the mean of hosts and time",
    ),
    "standard_error": (pa.float64(), "standard error of value"),
    "low": (pa.float64(), "lower end of the 95 % interval of value"),
    "high": (pa.float64(), "upper end of that interval"),
    "share": (pa.float64(), "value as a fraction of its whole; NULL: the whole is itself noise"),
    "share_low": (pa.float64(), "lower end of the 95 % interval of share"),
    "share_high": (pa.float64(), "upper end of the 95 % interval of share"),
    "bias_bound": (
        pa.float64(),
        "indicators: what value may lack because hosts left some out, at most (one-sided 95 %)",
    ),
    "q_value": (
        pa.float64(),
        "smallest false-discovery rate at which the row is told from zero in its section",
    ),
    "told": (pa.bool_(), "whether it is told from zero"),
    "suppressed": (pa.bool_(), "whether there is no number: nothing released, or a share of noise"),
    "reason": (pa.string(), "why, or why most of the windows that are missing were suppressed"),
    "windows": (pa.int64(), "released windows"),
    "windows_suppressed": (pa.int64(), "suppressed windows"),
    "coverage": (pa.float64(), "released windows, as a fraction of the period"),
    "host_windows": (pa.int64(), "accepted hosts, added over the windows"),
    "host_s": (pa.int64(), "accepted hosts times the window's seconds, added over the windows"),
    "hosts": (pa.float64(), "accepted hosts of a window, mean"),
    "until": (pa.timestamp("us"), "end of the last released window, UTC"),
    "whole": (pa.float64(), "what share is of; of a mean, before hosts and time are divided out"),
}
"""Column -> Arrow type and meaning of `hours`, `days`, `weeks`, `eight_weeks`, and of frames."""

NOT_JUDGED: Final = "cells are not judged here"
"""What a query fails with that asks for what was left out."""
_FAMILY: Final = f"series, cohort, period_start, section, cell = '{LEFT_OUT}'"
_BIAS_Z: Final = normal_quantile(2 * BIAS_CONFIDENCE - 1)


def cells_sql(
    sums: str,
    outcomes: str,
    period_s: int,
    cohorts: str = "1",
    *,
    released: str | None = None,
    judged: bool = True,
) -> str:
    """Rows for people: the columns of CELL_MEANINGS.

    sums        rows of sums, in SQL
    outcomes    rows of outcomes of the same periods and cohorts
    cohorts     how many cohorts each row of sums is of, in SQL
    released    rows of the periods that have sums, where these are known more cheaply
    judged      False: a query that asks for q_value or told fails with NOT_JUDGED; any other
                reads its own cells alone, where else it reads their whole sections
    Returns     SQL; a period in which nothing was released has a row of every cell that is known
    """
    readable = _readable(sums, period_s, cohorts)
    numbers = (
        judged_sql(readable, "value", "false", _FAMILY)
        if judged
        else f"SELECT *, CAST(error('{NOT_JUDGED}') AS DOUBLE) AS q_value "  # noqa: S608
        f"FROM ({readable})"
    )
    columns = ", ".join(CELL_MEANINGS)
    return f"""
WITH numbers AS ({numbers}), gone AS (
    SELECT series, cohort, period_start, CAST(sum(windows) AS BIGINT) AS windows_suppressed,
        arg_max(reason, windows) AS reason
    FROM (
        SELECT series, cohort, period_start, reason, sum(windows) AS windows
        FROM ({outcomes}) WHERE outcome = 'suppressed' GROUP BY ALL
    ) GROUP BY ALL
), silent AS (
    SELECT series, cohort, period_start FROM gone WHERE NOT EXISTS (
        FROM ({released or sums}) AS released WHERE released.series = gone.series
        AND released.cohort IS NOT DISTINCT FROM gone.cohort
        AND released.period_start = gone.period_start
    )
), lost AS (
    SELECT known.*, silent.period_start
    FROM (
        SELECT DISTINCT series, cohort, section, cell, unit, kind FROM ({sums})
        -- No series fell silent, mostly: then nothing is read.
        WHERE series IN (SELECT series FROM silent)
    ) AS known
    JOIN silent ON silent.series = known.series
        AND silent.cohort IS NOT DISTINCT FROM known.cohort
), rows AS (
    FROM numbers
    UNION ALL BY NAME
    SELECT *, CAST({period_s} AS INTEGER) AS period_s, 0 AS windows, 0 AS coverage FROM lost
), named AS (
    SELECT rows.* EXCLUDE (reason), {model_sql()} AS model,
        CASE WHEN len(string_split(cell, '/')) > 1 + CAST(model != '' AS INTEGER)
            THEN split_part(cell, '/', -2) ELSE '' END AS measure,
        split_part(cell, '/', -1)
            || CASE measure WHEN '{LAUNCHES}' THEN '{BY_LAUNCHES}' ELSE '' END AS name,
        {_bins_sql()},
        coalesce(q_value <= {FALSE_DISCOVERY_RATE}, false) AS told,
        share IS NULL AS suppressed,
        coalesce(gone.windows_suppressed, 0) AS windows_suppressed,
        coalesce(
            gone.reason, CASE WHEN share IS NULL THEN '{NOISE_REASON}' END
        ) AS reason
    FROM (SELECT *, NULL AS reason FROM rows) AS rows LEFT JOIN gone ON gone.series = rows.series
        AND gone.cohort IS NOT DISTINCT FROM rows.cohort
        AND gone.period_start = rows.period_start
)
SELECT {columns} FROM named
"""  # noqa: S608  (texts of this package)


@lru_cache(maxsize=1)
def _bins_sql() -> str:
    """The columns of bins, as the catalogue has them: cells spell them in powers or in numbers."""
    sections = {s.name: s.bins for s in Catalogue.load().sections if s.bins is not None}

    def by_section(of: Callable[[Bins], str]) -> str:
        cases = (f"WHEN {literal(name)} THEN {of(bins)}" for name, bins in sections.items())
        return f"CASE section {' '.join(cases)} END"

    place = by_section(lambda bins: f"list_position([{', '.join(map(literal, bins.names))}], cell)")
    edges = by_section(lambda bins: f"[{', '.join(map(str, bins.edges))}]::DOUBLE[]")
    return (
        f"CAST({place} - 1 AS INTEGER) AS bin, {edges} AS edges, edges[bin + 1] AS bin_low, "
        f"edges[bin + 2] AS bin_high, {by_section(lambda bins: literal(bins.unit))} AS bin_unit"
    )


def _readable(source: str, period_s: int, cohorts: str) -> str:
    """Value, error, interval, share, coverage."""
    reach = normal_quantile()
    rows = f"""
SELECT *, sqrt(squared_error) / per AS standard_error, {_finite("value")} AS x,
    {_finite("whole")} AS d, {_finite("squared_error")} AS vx, {_finite("whole_variance")} AS vd,
    {_finite("covariance")} AS cov, {_finite("sampling")} AS extra
FROM (
    SELECT *, variance + greatest(coalesce(left_out, 0), 0) AS squared_error,
        CASE kind WHEN 'mean' THEN host_s ELSE 1 END AS per
    FROM ({source})
)
"""  # noqa: S608  (texts of this module)
    return f"""
SELECT series, cohort, period_start, CAST({period_s} AS INTEGER) AS period_s, section, cell,
    CASE WHEN kind = 'indicators' AND windows > {cohorts} THEN 'host-windows' ELSE unit END AS unit,
    kind,
    value / per AS value, standard_error,
    value / per - {reach} * standard_error AS low, value / per + {reach} * standard_error AS high,
    whole, share, share_low, share_high,
    CASE WHEN kind != 'indicators' THEN 0 WHEN left_out IS NOT NULL THEN least(
        greatest(left_out + {_BIAS_Z} * sqrt(left_out_variance + greatest(left_out, 0)), 0),
        host_windows
    ) END AS bias_bound,
    windows, host_windows, host_s, host_windows / windows AS hosts,
    covered_s / {period_s} / {cohorts} AS coverage, until
FROM ({shares_sql(rows)})
"""  # noqa: S608  (texts of this package)


def _finite(column: str) -> str:
    """A number, 0 where there is none: a whole of 0 gives no share."""
    return f"CASE WHEN isfinite({column}) THEN {column} ELSE 0 END"
