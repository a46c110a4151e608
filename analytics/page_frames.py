"""The frames of each page that people open: one function a page, frames by name.

Columns of cells: `cells_sql.CELL_MEANINGS`; of changes: `changes.CHANGE_COLUMNS`; of costs:
`incident_costs.COST_COLUMNS`; of outcomes: `outcomes_sql.OUTCOME_MEANINGS` and `coverage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd

from aggregator.releases import Moment

from .changes import CHANGE_COLUMNS
from .fleet_releases import FleetReleases, NothingReleased
from .rollup_periods import RollupPeriod

Frames = Mapping[str, pd.DataFrame]

COHORT_COLUMNS: Final = (
    "series", "cohort", "domain", "hosts", "n_min", "windows", "windows_suppressed", "until",
    "settled_at",
)  # fmt: skip


def fleet_page(
    fleet: FleetReleases,
    period: str = "week",
    since: Moment | None = None,
    until: Moment | None = None,
) -> Frames:
    """Mix by family: `over_time`, `now` (its newest period), `by_model` (of that) and `changes`."""
    over_time = fleet.mix("family", period, since=since, until=until)
    by_model = fleet.mix("family", period, by_model=True, since=since, until=until)
    return {
        "now": newest(over_time),
        "over_time": over_time,
        "by_model": newest(by_model),
        "changes": _changes(fleet, "family", period),
    }


def applications_page(
    fleet: FleetReleases,
    period: str = "day",
    since: Moment | None = None,
    until: Moment | None = None,
) -> Frames:
    """Applications: `now`, `over_time` (GPU time), `seen` (hosts by day) and `changes`."""
    over_time = fleet.applications(period, since=since, until=until)
    return {
        "now": newest(over_time),
        "over_time": over_time,
        "seen": fleet.seen("day", since=since, until=until),
        "changes": _changes(fleet, "application", period),
    }


def causes_page(
    fleet: FleetReleases, since: Moment | None = None, until: Moment | None = None
) -> Frames:
    """Root causes: `over_time`, every week's table with trend and cost, and `now`, the newest."""
    over_time = fleet.causes(since, until)
    return {"now": newest(over_time, "window_start"), "over_time": over_time}


def faults_page(
    fleet: FleetReleases, since: Moment | None = None, until: Moment | None = None
) -> Frames:
    """Faults: `now` and `over_time`, by eight weeks; health: `temperature` and `power` by day."""
    over_time = fleet.faults(since, until)
    return {
        "now": newest(over_time, "window_start"),
        "over_time": over_time,
        "temperature": fleet.binned("temperature", "day", since=since, until=until),
        "power": fleet.binned("power", "day", since=since, until=until),
    }


def kernels_page(
    fleet: FleetReleases,
    period: str = "hour",
    since: Moment | None = None,
    until: Moment | None = None,
) -> Frames:
    """Kernels: `families` over time, and `durations`, time by bin (`bin`) for a heat map."""
    return {
        "families": fleet.mix("family", period, since=since, until=until),
        "durations": fleet.durations(period, since=since, until=until),
    }


def privacy_page(
    fleet: FleetReleases, since: Moment | None = None, until: Moment | None = None
) -> Frames:
    """Privacy: `budget` by series, `cohorts`, and `suppressed`, windows by day and reason."""
    shortest = _shortest(fleet, since, until)
    gone = shortest[shortest["outcome"] == "suppressed"]
    return {
        "budget": fleet.budget(),
        "cohorts": cohorts(shortest),
        "suppressed": gone.reset_index(drop=True),
    }


def pipeline_page(
    fleet: FleetReleases,
    period: str = "hour",
    since: Moment | None = None,
    until: Moment | None = None,
) -> Frames:
    """Pipeline: `coverage` and lag by period, `rejections` by reason, `contact` by cohort."""
    outcomes = fleet.outcomes(period, since=since, until=until)
    rejected = outcomes["outcome"] == "rejected"
    return {
        "coverage": with_lag(outcomes[~rejected]),
        "rejections": outcomes[rejected].reset_index(drop=True),
        "contact": cohorts(_shortest(fleet, since, until)),
    }


def newest(rows: pd.DataFrame, column: str = "period_start") -> pd.DataFrame:
    """Take the rows of each series' newest period that has a number; else of its newest."""
    if rows.empty:
        return rows
    numbers = rows[~rows["suppressed"]] if "suppressed" in rows else rows
    last = rows.groupby("series")[column].max()
    last.update(numbers.groupby("series")[column].max())
    return rows[rows[column] == rows["series"].map(last)].reset_index(drop=True)


def cohorts(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Sum outcomes up by cohort: accepted hosts of a window, windows, last contact.

    Returns     COHORT_COLUMNS; `until` is the end of the last window that was settled
    """
    ended = outcomes[outcomes["outcome"] != "rejected"]
    rows = []
    for (series, cohort), windows in ended.groupby(["series", "cohort"]):
        released = windows[windows["outcome"] == "released"]
        counted = released["windows"].sum()
        rows.append(
            {
                "series": series,
                "cohort": cohort,
                "domain": next(iter(windows["domain"].dropna()), None),
                "hosts": released["host_windows"].sum() / counted if counted else 0.0,
                "n_min": windows["n_min"].max(),
                "windows": counted,
                "windows_suppressed": windows["windows"].sum() - counted,
                "until": windows["until"].max(),
                "settled_at": windows["settled_at"].max(),
            }
        )
    return pd.DataFrame(rows, columns=list(COHORT_COLUMNS))


def with_lag(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Add `lag_mean_s`, from a window's end to its settling, mean over the windows."""
    found = outcomes.assign(lag_mean_s=outcomes["lag_s"] / outcomes["windows"])
    return found.reset_index(drop=True)


def _changes(fleet: FleetReleases, by: str, period: str) -> pd.DataFrame:
    try:
        return fleet.change(by, period)
    except NothingReleased:
        return pd.DataFrame(columns=list(CHANGE_COLUMNS))


def _shortest(fleet: FleetReleases, since: Moment | None, until: Moment | None) -> pd.DataFrame:
    """Outcomes by day; of series with longer windows by the period that has them."""
    found: list[pd.DataFrame] = []
    seen: set[str] = set()
    for period in (RollupPeriod.DAY, RollupPeriod.WEEK, RollupPeriod.EIGHT_WEEKS):
        rows = fleet.outcomes(period, since=since, until=until)
        found.append(rows[~rows["series"].isin(seen)])
        seen |= set(rows["series"])
    return pd.concat([rows for rows in found if len(rows)] or found[:1], ignore_index=True)
