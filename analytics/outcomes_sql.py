"""SQL that counts how windows ended in an hour, a day and a week: released, or suppressed and why.

Reports that were refused are counted beside them, by reason.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from .sums_sql import bucket_sql

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
