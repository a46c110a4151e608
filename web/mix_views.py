"""Views that every mix has: now, over time and what changed, of one section of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from pages.interval_chart import IntervalRow, interval_chart
from pages.number import POINTS, SHARE, Number
from pages.scale import length_said, moment_said
from pages.trend_chart import TrendLine, TrendPoint, trend_chart
from pages.wording import counted, listed, plain, value_said

from .page_shape import FrameColumn, View, numbers_of
from .page_state import ALL_MODELS, PageState
from .store_reading import StoreReading

LINES: Final = 6
ROWS: Final = 16
NOISE_ROWS: Final = 3
NO_WORK: Final = ("idle", "unmeasured")
FROM: Final = FrameColumn("period_start", "From", "first moment, UTC")
SHARE_COLUMN: Final = FrameColumn("share", "Share", "share of measured GPU time", SHARE)


@dataclass(frozen=True, slots=True)
class MixViews:
    """A mix of GPU time as views.

    by      what `StoreReading` knows it by
    name    the column that names its cells
    noun    what a cell is, for sentences
    models  whether it is released by GPU model, too
    """

    by: str
    name: FrameColumn
    noun: str
    models: bool = False

    def views(self) -> tuple[View, View, View]:
        """Give the three views."""
        columns = (self.name, SHARE_COLUMN)
        change = FrameColumn("change", "Change", "of the share", POINTS, signed=True)
        rate = FrameColumn("q_value", "q", "false-discovery rate at which it is told", number=True)
        return (
            View("mix", "Now", self.now, columns, self._now_words, self._now_chart, how),
            View(
                "trend", "Over time", self.over_time, (FROM, *columns),
                _trend_words, self._trend_chart, how,
            ),
            View(
                "changes", "What changed", self.changed, (self.name, change, rate),
                _change_words, self._change_chart, _how_changed,
                "There are no two whole periods to compare yet.",
            ),
        )  # fmt: skip

    def now(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the newest mix, what is told from zero first and by its size."""
        cells = measured(reading.summary(self.by, state, **self._chosen(state)), state)
        return cells if cells.empty else largest(cells).head(ROWS)

    def over_time(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the mix of each period, newest first, of the cells that lead in the newest."""
        leading = self.now(reading, state)
        if leading.empty:
            return leading
        told = leading[leading["told"]]["name"]
        names = [*told[~told.isin(NO_WORK)].head(LINES), *NO_WORK]
        cells = reading.trend(self.by, state, names=names, **self._chosen(state))
        wanted = measured(cells, state)
        return (
            wanted
            if wanted.empty
            else wanted.sort_values(["period_start", "value"], ascending=[False, False])
        )

    def changed(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return what the newest whole period has more or less of than the one before."""
        cells = measured(reading.change(self.by, state, **self._chosen(state)), state)
        if cells.empty:
            return cells
        cells = cells.assign(value=cells["change"], size=cells["change"].abs())
        found: pd.DataFrame = cells.sort_values(["told", "size"], ascending=False).head(ROWS)
        return found

    def _chosen(self, state: PageState) -> dict[str, Any]:
        return {"model": state.model} if self.models and state.model != ALL_MODELS else {}

    def _now_chart(self, frame: pd.DataFrame) -> Markup:
        # Idle time is most of it: beside it nothing else could be told apart.
        rows = interval_rows(drawn(working(frame)))
        return interval_chart(f"Share of GPU time by {self.noun}", rows, SHARE)

    def _trend_chart(self, frame: pd.DataFrame) -> Markup:
        lines = trend_lines(working(frame))
        return trend_chart(f"Share of GPU time by {self.noun}", lines, SHARE)

    def _change_chart(self, frame: pd.DataFrame) -> Markup:
        rows = interval_rows(drawn(frame))
        return interval_chart(f"Change of share by {self.noun}", rows, POINTS, signed=True)

    def _now_words(self, frame: pd.DataFrame) -> str:
        told = working(frame[frame["told"]])
        if told.empty:
            return f"No {self.noun} is told from zero: everything here is mostly noise."
        idle = list(named(frame[(frame["name"] == "idle") & frame["told"]]))
        leading = [
            f"{plain(name)} ({value_said(number, SHARE)})" for name, number in named(told.head(3))
        ]
        rest = noise_said(len(frame) - int(frame["told"].sum()))
        before = f"GPUs are idle {value_said(idle[0][1], SHARE)} of the time. " if idle else ""
        return f"{before}Most GPU time goes to {listed(leading)}.{rest}"


def measured(cells: pd.DataFrame, state: PageState) -> pd.DataFrame:
    """Leave out the other measure, and time in which nobody looked."""
    if cells.empty:
        return cells
    wanted = cells["measure"].isin([state.measure, ""]) & (cells["name"] != "unmeasured")
    found: pd.DataFrame = cells[wanted]
    return found


def working(cells: pd.DataFrame) -> pd.DataFrame:
    """Leave out the time in which nothing ran."""
    found: pd.DataFrame = cells[~cells["name"].isin(NO_WORK)]
    return found


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Take what a drawing has rows for: all that is told, and the first few that are noise."""
    noise = ~frame["told"].astype(bool)
    found: pd.DataFrame = frame[~noise | (noise.cumsum() <= NOISE_ROWS)]
    return found


def noise_said(count: int) -> str:
    """Say how many rows more are mostly noise; nothing where none is."""
    return f" {count:,} more {'is' if count == 1 else 'are'} mostly noise." if count else ""


def largest(cells: pd.DataFrame) -> pd.DataFrame:
    """Order cells: told from zero first, larger first."""
    found: pd.DataFrame = cells.sort_values(["told", "value"], ascending=False)
    return found


def interval_rows(frame: pd.DataFrame) -> list[IntervalRow]:
    """Make a row of a chart of each row of a frame."""
    return [IntervalRow(plain(name), number) for name, number in named(frame)]


def named(frame: pd.DataFrame) -> Iterator[tuple[str, Number]]:
    """Go through the names of a frame with their numbers."""
    return zip(frame["name"], numbers_of(frame), strict=True)


def trend_lines(frame: pd.DataFrame) -> Sequence[TrendLine]:
    """Make a line of each name of a frame whose newest rows come first; the largest line first."""
    order = frame.groupby("name")["value"].first().sort_values(ascending=False).index
    points: dict[str, list[TrendPoint]] = {name: [] for name in order}
    starts = frame["period_start"].to_numpy("datetime64[s]").astype(np.int64)
    for name, start_s, length_s, number in zip(
        frame["name"], starts, frame["period_s"], numbers_of(frame), strict=True
    ):
        points[name].append(TrendPoint(float(start_s), float(length_s), number))
    return [TrendLine(plain(name), points[name][::-1], tone) for tone, name in enumerate(order)]


def how(frame: pd.DataFrame) -> str:
    """Say how the newest numbers of a frame were made, and of how many periods they are newest."""
    newest = frame.sort_values("period_start").iloc[-1]
    periods = frame["period_start"].nunique()
    which = f", the newest of {periods} periods" if periods > 1 else ""
    at = moment_said(pd.Timestamp(newest["period_start"]).timestamp())
    promised = f" Epsilon {newest['epsilon']:g} for a host's week." if newest["epsilon"] > 0 else ""
    return (
        f"{series_said(newest)}{which}, {length_said(float(newest['period_s']))} from {at} UTC: "
        f"{counted(int(newest['windows']), 'window')}, {100 * newest['coverage']:.0f} % of the "
        f"time, {newest['hosts']:,.0f} hosts in each.{promised}"
    )


def series_said(row: pd.Series) -> str:
    """Say of which series a row is, and of which cohort where it is of one alone."""
    cohort = row.get("cohort")
    return f"Series {row['series']}" + ("" if pd.isna(cohort) else f", cohort {cohort}")


def _trend_words(frame: pd.DataFrame) -> str:
    length = length_said(float(frame["period_s"].iloc[0]))
    return (
        f"Points of {length} with their 95 % intervals. A gap is a time in which every window was "
        "suppressed."
    )


def _change_words(frame: pd.DataFrame) -> str:
    told = frame[frame["told"]]
    if told.empty:
        return "Nothing is told to have changed: every difference is within its noise."
    said = [
        f"{plain(name)} {value_said(number, POINTS, signed=True)}"
        for name, number in named(told.head(3))
    ]
    before = moment_said(pd.Timestamp(frame["before_start"].iloc[0]).timestamp())
    return f"Against the period from {before} UTC: {listed(said)}."


def _how_changed(frame: pd.DataFrame) -> str:
    return (
        f"{series_said(frame.iloc[0])}. Released: "
        f"{100 * frame['coverage_before'].iloc[0]:.0f} % of the period before, "
        f"{100 * frame['coverage_after'].iloc[0]:.0f} % of this one. Of the changes that are told, "
        "1 % are expected to be none."
    )
