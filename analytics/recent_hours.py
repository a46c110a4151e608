"""The sixty minutes to each minute: sums of released windows that slide, made as they are read.

They are those of an hour's roll-up that ends at that minute, and so are their errors: no model
stands behind them, steps and outages change nothing of it. Two that overlap share windows, so no
longer roll-up is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from aggregator.releases.packs import Listing, list_folder
from aggregator.releases.release_files import SUPPRESSED_FOLDER
from aggregator.releases.releases import literal, suppressed, with_basis

from .rollup_files import ALWAYS, NEVER
from .sql import SUM_MEANINGS, cells_sql, merged_sql, windows_sql

RECENT_VIEW: Final = "recent"
MINUTES: Final = 60
MOST_MINUTES: Final = 20_160  # two weeks; longer ones are what roll-ups are for

Select = Callable[[Listing], str]

_KEY: Final = ("series", "cohort", "section", "cell", "unit", "kind")
_SUMS: Final = [name for name in SUM_MEANINGS if name not in (*_KEY, "period_start", "until")]
_OF_ALL: Final = ("left_out", "left_out_variance")  # not known where one window has none


def recent_sql(
    folder: Path,
    *,
    minutes: int = MINUTES,
    section: str | None = None,
    series: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    by_cohort: bool = True,
    judged: bool = True,
) -> str:
    """Rows for people of so many minutes to each moment at which a window ended, in SQL.

    folder          of releases; windows that these minutes are a multiple of are added up: of
                    others the first would begin before them
    since, until    moments in (since, until]; without `since` the newest of each series and cohort
    by_cohort       a row for each cohort; else cohorts are added up
    judged          as `cells_sql` has it
    Returns         SQL of rows of CELL_MEANINGS
    """
    length = timedelta(minutes=minutes)
    own, gone = _windows(folder, series, since, until or NEVER, length)
    chosen = "" if section is None else f" AND section = {literal(section)}"
    cohort = "cohort" if by_cohort else "NULL::INTEGER"
    newest = "QUALIFY ends = max(ends) OVER (PARTITION BY series, cohort)"
    asked = newest if since is None else f"WHERE ends > TIMESTAMP '{since}'"
    hour = f"RANGE BETWEEN INTERVAL {60 * minutes - 1} SECONDS PRECEDING AND CURRENT ROW"
    cells = cells_sql(
        "FROM sums", "FROM outcomes", 60 * minutes, "cohorts", known="FROM each", judged=judged
    )
    return f"""
WITH apart AS MATERIALIZED (
    {windows_sql(own + chosen, 1)}
), each AS MATERIALIZED (
    {"FROM apart" if by_cohort else merged_sql("FROM apart", cohort="NULL::INTEGER")}
), gone AS MATERIALIZED (
    SELECT series, {cohort} AS cohort, window_start + to_seconds(window_s) AS ends, reason,
        count(*) AS windows
    FROM ({gone}) GROUP BY ALL
), moments AS MATERIALIZED (
    SELECT series, cohort, ends FROM gone UNION SELECT series, cohort, until FROM each
), rows AS (
    SELECT *, until AS ends FROM each
    UNION ALL BY NAME
    -- Where nothing was released the hour has what it had but for its first minute.
    SELECT known.*, moments.ends, 0 AS windows
    FROM (SELECT DISTINCT {", ".join(_KEY)} FROM each) AS known JOIN moments
        ON moments.series = known.series AND moments.cohort IS NOT DISTINCT FROM known.cohort
    ANTI JOIN each ON each.series = moments.series
        AND each.cohort IS NOT DISTINCT FROM moments.cohort AND each.until = moments.ends
), shown AS MATERIALIZED (
    SELECT * FROM moments {asked}
), slid AS (
    SELECT {", ".join(_KEY)}, ends, max(until) OVER hour AS until,
        {", ".join(map(_slid, _SUMS))}
    FROM rows
    WINDOW hour AS (PARTITION BY series, cohort, section, cell ORDER BY ends {hour})
), sums AS MATERIALIZED (
    SELECT slid.* EXCLUDE (ends), ends - to_seconds({60 * minutes}) AS period_start, cohorts
    FROM slid JOIN ({_COHORTS[by_cohort]}) USING (series)
    SEMI JOIN shown ON shown.series = slid.series
        AND shown.cohort IS NOT DISTINCT FROM slid.cohort AND shown.ends = slid.ends
    WHERE windows > 0
), outcomes AS MATERIALIZED (
    SELECT shown.series, shown.cohort, shown.ends - to_seconds({60 * minutes}) AS period_start,
        'suppressed' AS outcome, reason, sum(windows) AS windows
    FROM shown JOIN gone ON gone.series = shown.series
        AND gone.cohort IS NOT DISTINCT FROM shown.cohort
        AND gone.ends <= shown.ends AND gone.ends > shown.ends - to_seconds({60 * minutes})
    GROUP BY ALL
)
FROM ({cells})
"""  # noqa: S608  (texts of this package)


_COHORTS: Final = {
    True: "SELECT DISTINCT series, 1 AS cohorts FROM apart",
    False: "SELECT series, count(DISTINCT cohort) AS cohorts FROM apart GROUP BY series",
}


def _slid(name: str) -> str:
    total = f"sum({name}) OVER hour"
    if SUM_MEANINGS[name][0] == "int64":
        total = f"CAST({total} AS BIGINT)"
    if name == "whole":  # as `windows_sql` has it: a window without one has a small one
        known = "sum(coalesce(whole, whole_bound)) OVER hour"
        total = f"CASE WHEN count(whole) OVER hour > 0 THEN {known} END"
    if name in _OF_ALL:
        total = f"CASE WHEN count(left_out) OVER hour = count(until) OVER hour THEN {total} END"
    return f"{total} AS {name}"


def _windows(
    folder: Path, series: str | None, since: datetime | None, until: datetime, length: timedelta
) -> tuple[str, str]:
    """Choose the windows of which sums are asked for; arguments as `recent_sql` has them.

    Returns     rows of released ones, the newest at least of each series, and of suppressed ones
    """
    listings = list_folder(folder), list_folder(folder / SUPPRESSED_FOLDER)
    newest, gone = (listing.newest(until) for listing in listings)
    first = {
        name: (max(newest.get(name, ALWAYS), gone.get(name, ALWAYS)) if since is None else since)
        - length
        for name in newest.keys() | gone.keys()
        if series in {None, name}
    }
    # Its cells are what is known of a series that fell silent.
    spans = {name: min(start, newest.get(name, start)) for name, start in first.items()}
    condition = (
        f"{length.total_seconds():.0f} % window_s = 0 "
        f"AND window_start + to_seconds(window_s) <= TIMESTAMP '{until}'"
    )

    def chosen(listing: Listing, spans: Mapping[str, datetime], select: Select) -> str:
        parts = [listing.between(name, start, until) for name, start in spans.items()]
        found = Listing(
            tuple(single for part in parts for single in part.singles),
            tuple(pack for part in parts for pack in part.packs),
            listing.coarse,
        )
        known = " OR ".join(
            f"(series = {literal(name)} AND window_start >= TIMESTAMP '{start}')"
            for name, start in spans.items()
        )
        return f"FROM ({select(found)}) WHERE ({known or 'false'}) AND {condition}"

    return chosen(listings[0], spans, with_basis), chosen(listings[1], first, suppressed)
