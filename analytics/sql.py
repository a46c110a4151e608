"""SQL that adds up windows and how they ended, and reads the sums as numbers with errors.

A roll-up keeps what adds up exactly: values, variances and wholes. Shares and intervals are made of
those when they are read. Formulae: docs/analytics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa

from aggregator.releases.releases import Meanings, literal
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE, judged_sql
from aggregator.statistics.ratios import normal_quantile, shares_sql
from aggregator.statistics.statistics import BIAS_CONFIDENCE, model_sql
from wire.catalogue import LEFT_OUT, MEASURED, NO_CLASSES, Bins, Catalogue

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
    "whole_bound": (pa.float64(), "what whole may be off by, as hosts are told on a grid"),
}
"""Column -> Arrow type and meaning of a file of sums; all numbers but windows' ends add up."""

SUM_SCHEMA: Final = pa.schema([(name, kind) for name, (kind, _) in SUM_MEANINGS.items()])


def bucket_sql(moment: str, period_s: int) -> str:
    """The first moment of the period that holds a moment, in SQL."""
    return f"time_bucket(to_seconds({period_s}), {moment}, TIMESTAMP '1970-01-01')"


def windows_sql(source: str, period_s: int) -> str:
    """Add up windows of the view `with_basis`, of `period_s` at most, by period.

    A window without a whole has a model of few hosts there: its whole is known to be small.
    """
    moment = bucket_sql("window_start", period_s)
    return f"""
WITH cells AS (
    SELECT *, {moment} AS period_start, CASE kind WHEN 'mean' THEN window_s ELSE 1 END AS times
    FROM ({source})
), choices AS (
    SELECT series, cohort, section, period_start, count(*) AS known,
        sum(greatest(value, 0)) AS choice, sum(value) AS left_out,
        sum(greatest(variance - greatest(value, 0), 0)) AS left_out_variance
    FROM cells WHERE cell = '{LEFT_OUT}' GROUP BY ALL
)
SELECT series, cohort, section, cell, any_value(unit) AS unit, any_value(kind) AS kind,
    period_start, max(window_start + to_seconds(window_s)) AS until, count(*) AS windows,
    CAST(sum(window_s) AS BIGINT) AS covered_s, CAST(sum(n_hosts) AS BIGINT) AS host_windows,
    CAST(sum(n_hosts * CAST(window_s AS BIGINT)) AS BIGINT) AS host_s,
    sum(value * times) AS value,
    greatest(
        sum(variance * times ** 2)
            - CASE cell WHEN '{MEASURED}' THEN 0 ELSE coalesce(any_value(choice), 0) END, 0
    ) AS variance,
    CASE WHEN any_value(kind) != 'indicators' THEN 0
        WHEN any_value(known) = count(*) THEN any_value(left_out) END AS left_out,
    CASE WHEN any_value(kind) != 'indicators' THEN 0
        WHEN any_value(known) = count(*) THEN any_value(left_out_variance) END
        AS left_out_variance,
    CASE WHEN count(whole) > 0 THEN sum(coalesce(whole, whole_bound / 2) * times) END AS whole,
    sum(whole_variance * times ** 2) AS whole_variance, sum(covariance * times ** 2) AS covariance,
    sum(sampling * times ** 2) AS sampling,
    sum(CASE WHEN whole IS NULL THEN whole_bound / 2 ELSE whole_bound END * times) AS whole_bound
FROM cells LEFT JOIN choices USING (series, cohort, section, period_start)
GROUP BY series, cohort, section, cell, period_start
"""  # noqa: S608  (texts of this module)


@lru_cache(maxsize=1)
def _full_scale_sql() -> str:
    """Full scale of a mean's cell, as the catalogue has it; NULL of others, for SQL."""
    scales = {
        f"{section.name}/{coordinate.name}": coordinate.full_scale
        for section in Catalogue.load().sections
        for coordinate in section.coordinates
    }
    cases = " ".join(f"WHEN {literal(cell)} THEN {scale}" for cell, scale in scales.items())
    return f"CAST(CASE section || '/' || cell {cases} END AS DOUBLE)"


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
    CASE WHEN count(whole) > 0 THEN sum(coalesce(whole, whole_bound)) END AS whole,
    sum(whole_variance) AS whole_variance, sum(covariance) AS covariance,
    sum(sampling) AS sampling, sum(whole_bound) AS whole_bound
FROM ({source})
GROUP BY ALL
"""  # noqa: S608  (texts of this module)


LAUNCHES: Final = "launch_share"  # the measure of hosts that see launches alone
NOISE_REASON: Final = "whole_is_noise"
"""Why a share has no number: what it divides by is itself noise."""
FEW_REASON: Final = "few_hosts"
"""Or a GPU model of so few hosts that what they have is not told."""

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
        "sum over hosts and released windows; of a mean, that of time and hosts that measured",
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
    "hosts": (
        pa.float64(),
        "accepted hosts of a window, mean; of means and indicators, hosts that measured",
    ),
    "until": (pa.timestamp("us"), "end of the last released window, UTC"),
    "whole": (pa.float64(), "what share is of; of a mean, before hosts and time are divided out"),
}
"""Column -> Arrow type and meaning of `hours`, `days`, `weeks`, `eight_weeks`, and of frames."""

NOT_JUDGED: Final = "cells are not judged here"
"""What a query fails with that asks for what was left out."""
_FAMILY: Final = (
    f"series, cohort, period_start, section, CASE WHEN cell IN {NO_CLASSES} THEN cell END"
)
_BIAS_Z: Final = normal_quantile(2 * BIAS_CONFIDENCE - 1)


def cells_sql(
    sums: str,
    outcomes: str,
    period_s: int,
    cohorts: str = "1",
    *,
    released: str | None = None,
    known: str | None = None,
    judged: bool = True,
) -> str:
    """Rows for people: the columns of CELL_MEANINGS.

    sums        rows of sums, in SQL
    outcomes    rows of outcomes of the same periods and cohorts
    cohorts     how many cohorts each row of sums is of, in SQL
    released    rows of the periods that have sums, where these are known more cheaply
    known       rows of cells that were released before; None: those of sums
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
        SELECT DISTINCT series, cohort, section, cell, unit, kind FROM ({known or sums})
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
        share IS NULL AND (cell != '{MEASURED}' OR windows = 0) AS suppressed,
        coalesce(gone.windows_suppressed, 0) AS windows_suppressed,
        coalesce(
            gone.reason,
            CASE WHEN suppressed AND model != '' AND whole IS NULL THEN '{FEW_REASON}'
                WHEN suppressed THEN '{NOISE_REASON}' END
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
SELECT *, {_finite("value")} AS x,
    {_finite("whole")} AS d, {_finite("squared_error")} AS vx, {_finite("whole_variance")} AS vd,
    {_finite("covariance")} AS cov, {_finite("sampling")} AS extra,
    {_finite("whole_bound")} AS off
FROM (
    SELECT *,
        variance + CASE cell WHEN '{MEASURED}' THEN 0 ELSE greatest(coalesce(left_out, 0), 0) END
            AS squared_error,
        kind = 'mean' AND cell != '{MEASURED}' AS is_mean,
        coalesce({_full_scale_sql()}, whole / host_s) AS full_scale,
        CASE WHEN is_mean THEN whole / full_scale WHEN kind = 'mean' THEN covered_s / {cohorts}
            ELSE 1 END AS per
    FROM ({source})
)
"""  # noqa: S608  (texts of this module)
    return f"""
SELECT series, cohort, period_start, CAST({period_s} AS INTEGER) AS period_s, section, cell,
    CASE WHEN kind = 'indicators' AND windows > {cohorts} THEN 'host-windows' ELSE unit END AS unit,
    kind,
    -- A mean divides one noisy sum by another: it is its share of full scale, and so its interval.
    CASE WHEN is_mean THEN share * full_scale ELSE value / per END AS value,
    sqrt(squared_error + CASE WHEN is_mean THEN share ** 2 * whole_variance ELSE 0 END) / per
        AS standard_error,
    CASE WHEN is_mean THEN share_low * full_scale ELSE value / per - {reach} * standard_error
        END AS low,
    CASE WHEN is_mean THEN share_high * full_scale ELSE value / per + {reach} * standard_error
        END AS high,
    whole, share, share_low, share_high,
    CASE WHEN kind != 'indicators' THEN 0 WHEN left_out IS NOT NULL THEN least(
        greatest(left_out + {_BIAS_Z} * sqrt(left_out_variance + greatest(left_out, 0)), 0),
        host_windows + whole_bound
    ) END AS bias_bound,
    windows, host_windows, host_s,
    CASE WHEN is_mean THEN per / covered_s WHEN kind = 'indicators' AND cell != '{MEASURED}'
        THEN whole / windows ELSE host_windows / windows END AS hosts,
    covered_s / {period_s} / {cohorts} AS coverage, until
FROM ({shares_sql(rows)})
"""  # noqa: S608  (texts of this package)


def _finite(column: str) -> str:
    """A number, 0 where there is none: a whole of 0 gives no share."""
    return f"CASE WHEN isfinite({column}) THEN {column} ELSE 0 END"


OUTCOME_MEANINGS: Final[dict[str, tuple[pa.DataType, str]]] = {
    "series": (pa.string(), "task series"),
    "cohort": (pa.int32(), "cohort, a static part of the fleet"),
    "period_start": (pa.timestamp("us"), "first moment of the period, UTC"),
    "outcome": (pa.string(), "released, suppressed, or rejected: reports refused, by reason"),
    "reason": (pa.string(), "why a window was suppressed or reports were refused; else empty"),
    "until": (pa.timestamp("us"), "end of the last such window, UTC"),
    "windows": (pa.int64(), "windows that ended so; of rejected, windows with such reports"),
    "covered_s": (pa.int64(), "their length together, seconds"),
    "host_windows": (pa.int64(), "accepted hosts (suppressed: those that had reported), added up"),
    "reports": (pa.int64(), "reports refused, of rejected; else 0"),
    "n_min": (pa.int32(), "most hosts that a release needed; NULL where not known"),
    "lag_s": (pa.float64(), "from windows' ends to their settling, added up, seconds"),
    "lag_max_s": (pa.float64(), "the longest of those, seconds"),
    "settled_at": (pa.timestamp("us"), "when the last of them was settled, UTC"),
    "epsilon": (pa.float64(), "largest epsilon of their task; NULL where not known"),
    "delta": (pa.float64(), "largest delta of their task; NULL where not known"),
    "domain": (pa.string(), "whom the task serves; NULL where not known"),
}
"""Column -> Arrow type and meaning, in order; the view `outcomes` adds period_s and coverage."""

OUTCOME_SCHEMA: Final = pa.schema([(name, kind) for name, (kind, _) in OUTCOME_MEANINGS.items()])

_ADDED: Final = """
max(until) AS until, CAST(sum(windows) AS BIGINT) AS windows,
CAST(sum(covered_s) AS BIGINT) AS covered_s, CAST(sum(host_windows) AS BIGINT) AS host_windows,
CAST(sum(reports) AS BIGINT) AS reports, max(n_min) AS n_min, sum(lag_s) AS lag_s,
max(lag_max_s) AS lag_max_s, max(settled_at) AS settled_at, max(epsilon) AS epsilon,
max(delta) AS delta, max(domain) AS domain
"""


def outcomes_sql(chosen: str, period_s: int) -> str:
    """Count the windows that a condition on the views `released` and `suppressed` chooses."""
    return f"""
WITH released_windows AS (
    SELECT series, cohort, window_start, any_value(window_s) AS window_s,
        any_value(n_hosts) AS n_hosts, any_value(released_at) AS settled_at,
        any_value(rejections) AS rejections, any_value(epsilon) AS epsilon,
        any_value(delta) AS delta, any_value(domain) AS domain
    FROM released WHERE {chosen} GROUP BY series, cohort, window_start
), ended AS (
    SELECT series, cohort, window_start, window_s, 'released' AS outcome, '' AS reason, n_hosts,
        0 AS reports, NULL::INTEGER AS n_min, settled_at, epsilon, delta, domain
    FROM released_windows
    UNION ALL
    SELECT series, cohort, window_start, window_s, 'suppressed', reason, n_hosts, 0, n_min,
        settled_at, NULL, NULL, NULL
    FROM suppressed WHERE {chosen}
    UNION ALL
    SELECT series, cohort, window_start, window_s, 'rejected', reason, 0,
        CAST(json_extract(rejections, '$."' || reason || '"') AS BIGINT), NULL, settled_at,
        NULL, NULL, NULL
    FROM (SELECT *, unnest(json_keys(rejections)) AS reason FROM released_windows)
), lagged AS (
    SELECT *, window_start + to_seconds(window_s) AS until,
        epoch(settled_at) - epoch(window_start) - window_s AS lag
    FROM ended
), rows AS (
    SELECT series, cohort, outcome, reason,
        {bucket_sql("window_start", period_s)} AS period_start,
        until, 1 AS windows, window_s AS covered_s, n_hosts AS host_windows, reports, n_min,
        lag AS lag_s, lag AS lag_max_s, settled_at, epsilon, delta, domain
    FROM lagged
)
SELECT series, cohort, period_start, outcome, reason, {_ADDED} FROM rows
GROUP BY series, cohort, period_start, outcome, reason
"""  # noqa: S608  (texts of this package)


def merged_outcomes_sql(source: str, *, start: str = "period_start", cohort: str = "cohort") -> str:
    """Add outcomes up; arguments as `merged_sql`."""
    return f"""
SELECT series, {cohort} AS cohort, {start} AS period_start, outcome, reason, {_ADDED}
FROM ({source}) GROUP BY ALL
"""  # noqa: S608  (texts of this package)
