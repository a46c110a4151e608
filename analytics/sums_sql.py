"""SQL that adds released windows up, and that reads such sums as numbers with errors.

A roll-up keeps what adds up exactly: values, variances and wholes. Shares and intervals are made of
those when they are read. Formulae: docs/analytics.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from aggregator.statistics.ratios import normal_quantile
from aggregator.statistics.statistics import MODEL_AXIS, UNMEASURED
from wire.catalogue import LEFT_OUT, Catalogue

SUM_MEANINGS: Final[dict[str, tuple[pa.DataType, str]]] = {
    "series": (pa.string(), "task series"),
    "cohort": (pa.int32(), "cohort, a static part of the fleet"),
    "section": (pa.string(), "catalogue section"),
    "cell": (pa.string(), "cell of the section"),
    "unit": (pa.string(), "unit of one window's value"),
    "kind": (pa.string(), "mix, histogram, mean or indicators"),
    "period_start": (pa.timestamp("us"), "first moment of the period, UTC"),
    "until": (pa.timestamp("us"), "end of its last released window, UTC"),
    "windows": (pa.int64(), "released windows"),
    "covered_s": (pa.int64(), "their length together, seconds"),
    "host_windows": (pa.int64(), "accepted hosts, added over the windows"),
    "host_s": (pa.int64(), "accepted hosts times the window's seconds, added over the windows"),
    "value": (pa.float64(), "sum over hosts and windows; of a mean, times the window's seconds"),
    "variance": (pa.float64(), "of value, without the choice among indicators"),
    "left_out": (pa.float64(), "the section's cell left_out; NULL: not released"),
    "left_out_variance": (pa.float64(), "of left_out, without the choice"),
    "whole": (pa.float64(), "what value is a share of"),
    "whole_variance": (pa.float64(), "of whole"),
    "covariance": (pa.float64(), "of value with whole"),
    "sampling": (pa.float64(), "of measuring some hosts only, as ratios.fieller has it"),
}
"""Column -> Arrow type and meaning of a file of sums; all numbers but windows' ends add up."""

SUM_SCHEMA: Final = pa.schema([(name, kind) for name, (kind, _) in SUM_MEANINGS.items()])

_Z2: Final = normal_quantile() ** 2
_HOLE: Final = f"leaf = '{UNMEASURED}'"


@lru_cache(maxsize=1)
def _by_model() -> str:
    """Names of the sections whose cells begin with a GPU model, for SQL."""
    names = [
        section.name
        for section in Catalogue.load().sections
        if section.axes[0] == MODEL_AXIS and len(section.axes) > 1
    ]
    return ", ".join(f"'{name}'" for name in names) or "NULL"


def model_sql() -> str:
    """The GPU model of a cell where its section is by model, else '', for SQL."""
    return f"CASE WHEN section IN ({_by_model()}) THEN split_part(cell, '/', 1) ELSE '' END"


def bucket_sql(moment: str, period_s: int) -> str:
    """The first moment of the period that holds a moment, in SQL."""
    return f"time_bucket(to_seconds({period_s}), {moment}, TIMESTAMP '1970-01-01')"


def windows_sql(source: str, period_s: int) -> str:
    """Add up released windows by the period that they start in.

    source      rows of the view `released`, of windows of at most `period_s` each
    """
    moment = bucket_sql("window_start", period_s)
    return f"""
WITH cells AS (
    SELECT *, split_part(cell, '/', -1) AS leaf, {model_sql()} AS model FROM ({source})
), groups AS (
    SELECT series, cohort, window_start, section, model, any_value(n_hosts) AS n_hosts,
        sum(value) FILTER (NOT {_HOLE}) AS own,
        sum(standard_error ** 2) FILTER (NOT {_HOLE}) AS own_variance,
        max(value) FILTER ({_HOLE}) AS hole,
        max(standard_error ** 2) FILTER ({_HOLE}) AS hole_variance,
        max(share) FILTER ({_HOLE}) AS hole_share,
        max(value / nullif(share, 0)) FILTER (NOT {_HOLE}) AS by_share,
        -- The product of Fieller's two ends is c / a: it tells a, and a what sampling adds.
        arg_max(
            (value ** 2 - {_Z2} * standard_error ** 2) / (share_low * share_high), share
        ) FILTER (NOT {_HOLE} AND share_low > 0 AND share_high < 1) AS product_term,
        max(value) FILTER (cell = '{LEFT_OUT}') AS left_out,
        max(standard_error ** 2) FILTER (cell = '{LEFT_OUT}') AS left_out_squared_error
    FROM cells GROUP BY ALL
), walls AS (
    SELECT *,
        bool_or(hole_share IS NOT NULL) OVER (
            PARTITION BY series, cohort, window_start, section
        ) AS walled,
        -- GPUs times seconds are whole; of a model that nobody has, none.
        nullif(round(
            CASE WHEN hole_share != 0 THEN hole / hole_share ELSE by_share + hole END
        ), 0) AS wall
    FROM groups
), wholes AS (
    SELECT *, wall - hole AS measured, greatest(coalesce(
        hole_variance - ((wall - hole) ** 2 - product_term) / {_Z2},
        least(greatest(1 - hole / wall, 0), 1) * least(greatest(hole / wall, 0), 1)
            * wall ** 2 / n_hosts, 0
    ), 0) AS coins
    FROM walls
), of_groups AS (
    SELECT series, cohort, section, model, {moment} AS period_start,
        sum(wall) FILTER (walled) AS wall,
        sum(CASE WHEN walled THEN measured ELSE own END) AS whole,
        sum(CASE WHEN walled THEN hole_variance ELSE own_variance END) AS whole_variance,
        sum(CASE WHEN walled THEN coins ELSE 0 END) AS sampling,
        count(*) FILTER (NOT walled) / count(*) AS own_part,
        sum(greatest(left_out, 0)) AS choice,
        CASE WHEN count(left_out) = count(*) THEN sum(left_out) END AS left_out,
        CASE WHEN count(left_out) = count(*) THEN
            sum(greatest(left_out_squared_error - greatest(left_out, 0), 0)) END
            AS left_out_variance
    FROM wholes GROUP BY ALL
), of_cells AS (
    SELECT series, cohort, section, cell, model, {moment} AS period_start,
        any_value(leaf) AS leaf, any_value(unit) AS unit, any_value(kind) AS kind,
        max(window_start + to_seconds(window_s)) AS until, count(*) AS windows,
        CAST(sum(window_s) AS BIGINT) AS covered_s, CAST(sum(n_hosts) AS BIGINT) AS host_windows,
        CAST(sum(n_hosts * CAST(window_s AS BIGINT)) AS BIGINT) AS host_s,
        sum(value * CASE kind WHEN 'mean' THEN window_s ELSE 1 END) AS value,
        sum((standard_error * CASE kind WHEN 'mean' THEN window_s ELSE 1 END) ** 2)
            AS squared_error,
        max(value / nullif(share, 0) / n_hosts) AS full_scale
    FROM cells GROUP BY ALL
), joined AS (
    SELECT of_cells.*, of_groups.* EXCLUDE (series, cohort, section, model, period_start),
        kind IN ('mix', 'histogram') AS parts, {_HOLE} AS is_hole,
        CASE kind WHEN 'indicators' THEN greatest(squared_error - coalesce(choice, 0), 0)
            ELSE squared_error END AS variance
    FROM of_cells JOIN of_groups USING (series, cohort, section, model, period_start)
)
SELECT series, cohort, section, cell, unit, kind, period_start, until, windows, covered_s,
    host_windows, host_s, value, variance,
    CASE kind WHEN 'indicators' THEN left_out ELSE 0 END AS left_out,
    CASE kind WHEN 'indicators' THEN left_out_variance ELSE 0 END AS left_out_variance,
    CASE kind WHEN 'indicators' THEN host_windows WHEN 'mean' THEN full_scale * host_s
        ELSE CASE WHEN is_hole THEN wall ELSE whole END END AS whole,
    CASE WHEN parts AND NOT is_hole THEN coalesce(whole_variance, 0) ELSE 0 END AS whole_variance,
    CASE WHEN parts AND NOT is_hole THEN variance * own_part ELSE 0 END AS covariance,
    CASE WHEN parts AND NOT is_hole THEN sampling ELSE 0 END AS sampling
FROM joined
"""  # noqa: S608  (texts of this module)


def merged_sql(source: str, *, start: str = "period_start", cohort: str = "cohort") -> str:
    """Add sums up.

    source      rows of sums
    start       the longer period of each, in SQL
    cohort      what they keep of their cohort, in SQL: `NULL::INTEGER` adds cohorts up
    """
    return f"""
SELECT series, {cohort} AS cohort, section, cell, any_value(unit) AS unit, any_value(kind) AS kind,
    {start} AS period_start, max(until) AS until,
    CAST(sum(windows) AS BIGINT) AS windows, CAST(sum(covered_s) AS BIGINT) AS covered_s,
    CAST(sum(host_windows) AS BIGINT) AS host_windows, CAST(sum(host_s) AS BIGINT) AS host_s,
    sum(value) AS value, sum(variance) AS variance,
    CASE WHEN count(left_out) = count(*) THEN sum(left_out) END AS left_out,
    CASE WHEN count(left_out) = count(*) THEN sum(left_out_variance) END AS left_out_variance,
    sum(whole) AS whole, sum(whole_variance) AS whole_variance, sum(covariance) AS covariance,
    sum(sampling) AS sampling
FROM ({source})
GROUP BY ALL
"""  # noqa: S608  (texts of this module)
