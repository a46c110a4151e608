"""Roll-ups of before counts were coarse, as coarse as releases are; their grid is a fleet's."""

from __future__ import annotations

from typing import Final

from aggregator.protocol.released import fewest_hosts
from aggregator.releases.exact_counts import (
    coarse_sql,
    grid_steps,
    on_grid_sql,
    step_sql,
    with_steps,
)

_PERIODS: Final = ("series", "cohort", "period_start")


def coarse_sums_sql(rows: str) -> str:
    """Make sums of before counts were coarse as coarse as releases are."""
    mapped = f"""
SELECT * RENAME (left_out AS sum_left_out), host_windows AS hosts,
    host_s / host_windows AS window_s, '' AS domain
FROM ({rows})
"""  # noqa: S608  (texts of this module)
    coarse = with_steps(grid_steps(mapped, _PERIODS, ""), on_grid_sql(mapped, _PERIODS))
    return f"""
SELECT * EXCLUDE (hosts, window_s, domain, model, step, host_bound, left_out, left_error)
    REPLACE (
    hosts AS host_windows, CAST(hosts * window_s AS BIGINT) AS host_s,
    CAST(CAST(left_out_variance / host_windows AS FLOAT) AS DOUBLE) * (hosts + host_bound)
        AS left_out_variance
) RENAME (sum_left_out AS left_out, new_bound AS whole_bound) FROM ({coarse})
"""  # noqa: S608  (texts of this module)


def coarse_outcomes_sql(rows: str) -> str:
    fewest = str(fewest_hosts(""))
    hosts = coarse_sql("host_windows", f"windows * {step_sql('host_windows / windows', fewest)}")
    reports = coarse_sql("reports", f"windows * {fewest}")
    return f"SELECT * REPLACE ({hosts} AS host_windows, {reports} AS reports) FROM ({rows})"  # noqa: S608
