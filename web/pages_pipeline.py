"""Pipeline: whether the releases come, how late, and what was refused on the way."""

from __future__ import annotations

from typing import Final

import pandas as pd
from markupsafe import Markup

from pages.svg import length_said, moment_said
from pages.wording import SHARE, counted

from .histogram_views import time_map
from .mix_views import FROM, trend_ways
from .page_shape import EVERYBODY, FrameColumn, Page, View, choices
from .store_reading import PageState, StoreReading

MOST_COLUMNS: Final = 48  # of the drawing: the table and the files have all

_SERIES: Final = FrameColumn("series", "Series", "task series")


def _ends(reading: StoreReading, state: PageState, *outcomes: str) -> pd.DataFrame:
    found = reading.ends(state)
    rows: pd.DataFrame = found[found["outcome"].isin(outcomes)] if len(found) else found
    return rows


def contact(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return when each series was heard of last, and how long its windows took to settle."""
    rows = _ends(reading, state, "released", "suppressed")
    if rows.empty:
        return rows
    found = rows.groupby("series", as_index=False).agg(
        newest=("until", "max"), settled=("settled_at", "max"), windows=("windows", "sum"),
        lag=("lag_s", "sum"), longest=("lag_max_s", "max"),
    )  # fmt: skip
    return found.assign(lag=found["lag"] / found["windows"])


def coverage(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return the released part of each period by series, newest first."""
    rows = _ends(reading, state, "released", "suppressed")
    if rows.empty:
        return rows
    rows = rows.assign(done=rows["covered_s"].where(rows["outcome"] == "released", 0))
    found = rows.groupby(["period_start", "series"], as_index=False).agg(
        done=("done", "sum"), ended=("covered_s", "sum"), period_s=("period_s", "first")
    )
    found = found.assign(name=found["series"], value=found["done"] / found["ended"])
    return found.sort_values(["period_start", "series"], ascending=[False, True])


def refused(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return the reports that were refused, by reason, most first."""
    rows = _ends(reading, state, "rejected")
    if rows.empty:
        return rows
    found = rows.groupby(["series", "reason"], as_index=False).agg(
        reports=("reports", "sum"), windows=("windows", "sum")
    )
    return found.sort_values("reports", ascending=False)


def _contact_words(frame: pd.DataFrame) -> str:
    slowest = frame.sort_values("lag").iloc[-1]
    return (
        f"Windows of {slowest['series']} take longest: they are settled "
        f"{length_said(float(slowest['lag']))} after their end, on average."
        if len(frame) > 1
        else f"A window is settled {length_said(float(slowest['lag']))} after its end, on average."
    )


def _coverage_words(frame: pd.DataFrame) -> str:
    part = frame["done"].sum() / frame["ended"].sum()
    return (
        f"{100 * part:.1f} % of the time whose windows ended was released; the rest is suppressed. "
        "The stronger, the larger the released part."
    )


def _coverage_chart(frame: pd.DataFrame) -> Markup:
    """Draw a column for each of the shortest periods; a longer one fills all that it covers."""
    shortest = frame[frame["period_s"] == frame["period_s"].min()]
    columns = sorted(shortest["period_start"].unique())[-MOST_COLUMNS:]
    ends = frame["period_start"] + pd.to_timedelta(frame["period_s"], unit="s")
    parts = [
        frame[(frame["period_start"] <= start) & (start < ends)].assign(
            period_start=start, period_s=shortest["period_s"].iloc[0]
        )
        for start in columns
    ]
    shown = pd.concat(parts, ignore_index=True)
    return time_map("Released part of the time", shown, sorted(shown["name"].unique()))


def _how_covered(frame: pd.DataFrame) -> str:
    newest = frame[frame["period_start"] == frame["period_start"].max()].iloc[0]
    at = moment_said(pd.Timestamp(newest["period_start"]).timestamp())
    return (
        "Length of the released windows by that of all windows that ended, of all cohorts that you "
        f"may see; by periods of {length_said(float(newest['period_s']))}, the newest from {at} "
        "UTC. It is counted, so it has no interval; reports that were refused are not in it."
    )


_CONTACT: Final = (
    _SERIES,
    FrameColumn("newest", "Newest window", "its end, UTC"),
    FrameColumn("settled", "Settled", "when the Leader released or gave it up, UTC"),
    FrameColumn("windows", "Windows", "that ended in the span", number=True),
    FrameColumn("lag", "Lag, s", "from windows' ends to their settling, mean", number=True),
    FrameColumn("longest", "Longest, s", "the longest lag, seconds", number=True),
)
_REFUSED: Final = (
    _SERIES,
    FrameColumn("reason", "Reason", "a row of the protocol's page"),
    FrameColumn("reports", "Reports", "that were refused", number=True),
    FrameColumn("windows", "Windows", "in which some were", number=True),
)

PAGE: Final = Page(
    "pipeline",
    "Pipeline",
    "Do the releases come, how late, and what is refused on the way?",
    (
        View(
            "contact", "Last contact", contact, _CONTACT,
            _contact_words,
            ways=lambda reading, state: trend_ways(coverage(reading, state)),
            ways_head="Released part over time",
        ),
        View(
            "coverage", "Coverage", coverage,
            (FROM, _SERIES, FrameColumn("released", "Released", "part of the time", SHARE)),
            _coverage_words, _coverage_chart, _how_covered,
        ),
        View(
            "refused", "Refused reports", refused, _REFUSED,
            lambda frame: f"{counted(int(frame['reports'].sum()), 'report')} refused, each counted "
            "by its reason and left out by name.",
            empty="No report was refused.",
        ),
    ),
    choices("span", "until"),
    EVERYBODY,
)  # fmt: skip
