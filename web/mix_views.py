"""Views that every mix has: now, over time, what changed; those of every root-cause table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from aggregator.statistics.causes import Trend
from aggregator.statistics.ratios import normal_quantile
from analytics.costs import ALL
from pages.interval_chart import IntervalRow, interval_chart
from pages.svg import length_said, moment_said
from pages.trend_chart import TrendLine, TrendPoint, trend_chart
from pages.wording import (
    GPU_HOURS,
    HOSTS,
    POINTS,
    SHARE,
    Number,
    Unit,
    interval_said,
    listed,
    number_said,
    plain,
    value_said,
)

from .page_shape import FrameColumn, View, numbers_of
from .store_reading import ALL_MODELS, PageState, StoreReading

LINES: Final = 6
ROWS: Final = 16
NOISE_ROWS: Final = 3
NO_WORK: Final = ("idle", "unmeasured")
FROM: Final = FrameColumn("period_start", "From", "first moment, UTC")
SHARE_COLUMN: Final = FrameColumn("share", "Share", "share of measured GPU time", SHARE)
MINUTE_COLUMN: Final = FrameColumn(
    "minute", "Newest minute", "the same in the newest minute alone, of the last hour", SHARE,
    "minute_",
)  # fmt: skip
STEP: Final = 0.05
"""Of a change whose time to be told is said."""


@dataclass(frozen=True, slots=True)
class MixViews:
    """A mix of GPU time as views; `by`: what `StoreReading` knows it by; `noun`: of a cell."""

    by: str
    name: FrameColumn
    noun: str
    models: bool = False

    def views(self) -> tuple[View, View, View]:
        columns = (self.name, SHARE_COLUMN, MINUTE_COLUMN)
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
        """Return the newest mix, what is significant first and by its size."""
        cells = measured(reading.summary(self.by, state, self._model(state)), state)
        return cells if cells.empty else largest(cells).head(ROWS)

    def over_time(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the mix of each period, newest first, of the cells that lead in the newest."""
        leading = self.now(reading, state)
        if leading.empty:
            return leading
        told = leading[leading["told"]]["name"]
        names = [*told[~told.isin(NO_WORK)].head(LINES), *NO_WORK]
        cells = reading.trend(self.by, state, self._model(state), names=names)
        wanted = measured(cells, state)
        newest_first = ["period_start", "value"]
        return wanted if wanted.empty else wanted.sort_values(newest_first, ascending=False)

    def changed(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return what the newest whole period has more or less of than the one before."""
        cells = measured(reading.change(self.by, state, self._model(state)), state)
        if cells.empty:
            return cells
        cells = cells.assign(value=cells["change"], size=cells["change"].abs())
        if reading.periods(state).part is None:
            cells["step_s"] = cells["seen_after_s"] * (cells["change"] / STEP) ** 2
        found: pd.DataFrame = cells.sort_values(["told", "size"], ascending=False).head(ROWS)
        return found

    def _model(self, state: PageState) -> str | None:
        return state.model if self.models and state.model != ALL_MODELS else None

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
            return f"No {self.noun} is significant: everything here is mostly noise."
        idle = list(named(frame[(frame["name"] == "idle") & frame["told"]]))
        rest = noise_said(len(frame) - int(frame["told"].sum()))
        before = f"GPUs are idle {value_said(idle[0][1], SHARE)} of the time. " if idle else ""
        if "moment" in frame:
            last = frame.iloc[0]
            before = f"{windows_said(last)} of the hour to {_said(last['moment'])} UTC. {before}"
        return f"{before}Most GPU time goes to {leading(told, SHARE)}.{rest}"


def measured(cells: pd.DataFrame, state: PageState) -> pd.DataFrame:
    """Leave out the other measure, and time in which nobody looked."""
    if cells.empty:
        return cells
    wanted = cells["measure"].isin([state.measure, ""]) & (cells["name"] != "unmeasured")
    found: pd.DataFrame = cells[wanted]
    return found


def working(cells: pd.DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = cells[~cells["name"].isin(NO_WORK)]
    return found


def leading(frame: pd.DataFrame, unit: Unit) -> str:
    """Name the first three rows with their numbers."""
    rows = named(frame.head(3))
    return listed([f"{plain(name)} ({value_said(number, unit)})" for name, number in rows])


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Take what a drawing has rows for: all that is told, and the first few that are noise."""
    noise = ~frame["told"].astype(bool)
    found: pd.DataFrame = frame[~noise | (noise.cumsum() <= NOISE_ROWS)]
    return found


def noise_said(count: int) -> str:
    """Say how many rows more are mostly noise; nothing where none is."""
    return f" {count:,} more {'is' if count == 1 else 'are'} mostly noise." if count else ""


def largest(cells: pd.DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = cells.sort_values(["told", "value"], ascending=False)
    return found


def interval_rows(frame: pd.DataFrame, prefix: str = "") -> list[IntervalRow]:
    return [IntervalRow(plain(name), number) for name, number in named(frame, prefix)]


def named(frame: pd.DataFrame, prefix: str = "") -> Iterator[tuple[str, Number]]:
    return zip(frame["name"], numbers_of(frame, prefix), strict=True)


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


def trend_ways(frame: pd.DataFrame) -> Sequence[TrendLine]:
    """Make the line of each name that has more than one row."""
    return [line for line in trend_lines(frame) if len(line.points) > 1] if len(frame) else []


def how(frame: pd.DataFrame) -> str:
    """Say how the newest numbers of a frame were made, and of how many periods they are newest."""
    newest = frame.sort_values("period_start").iloc[-1]
    periods = frame["period_start"].nunique()
    which = f", the newest of {periods} periods" if periods > 1 else ""
    at = _said(newest["period_start"])
    promised = f" Epsilon {newest['epsilon']:g} for a host's week." if newest["epsilon"] > 0 else ""
    return (
        f"{series_said(newest)}{which}, {length_said(float(newest['period_s']))} from {at} UTC: "
        f"{windows_said(newest)}, {newest['hosts']:,.0f} hosts in each.{promised}"
    )


def windows_said(row: pd.Series) -> str:
    """Say how many windows a row is of, and how many there would be with none suppressed."""
    windows = int(row["windows"])
    return f"{windows:,} of {max(round(windows / (row['coverage'] or 1.0)), windows):,} windows"


def _said(moment: object) -> str:
    return moment_said(pd.Timestamp(moment).timestamp())  # type: ignore[arg-type]


def series_said(row: pd.Series) -> str:
    """Say of which series a row is, and of which cohort where it is of one alone."""
    cohort = row.get("cohort")
    return f"Series {row['series']}" + ("" if pd.isna(cohort) else f", cohort {cohort}")


def _trend_words(frame: pd.DataFrame) -> str:
    length = length_said(float(frame["period_s"].iloc[0]))
    each = ", one to each minute, so neighbours share windows" if "moment" in frame else ""
    return (
        f"Points of {length} with their 95 % intervals{each}. A gap is a time in which every "
        "window was suppressed."
    )


def _change_words(frame: pd.DataFrame) -> str:
    told = frame[frame["told"]]
    slowest = frame["step_s"].max() if "step_s" in frame else np.nan
    seen = "" if pd.isna(slowest) else length_said(float(slowest))
    step = f" A step of 5 points is told after about {seen}." if seen else ""
    if told.empty:
        return f"No change is significant: every difference is within its noise.{step}"
    said = [
        f"{plain(name)} {value_said(number, POINTS, signed=True)}"
        for name, number in named(told.head(3))
    ]
    before = _said(frame["before_start"].iloc[0])
    return f"Against the period from {before} UTC: {listed(said)}.{step}"


def _how_changed(frame: pd.DataFrame) -> str:
    return (
        f"{series_said(frame.iloc[0])}. Released: "
        f"{100 * frame['coverage_before'].iloc[0]:.0f} % of the period before, "
        f"{100 * frame['coverage_after'].iloc[0]:.0f} % of this one. Of the significant changes, "
        "1 % are expected to be none."
    )


UNSEEN: Final = "Hosts that did not measure it are left out."
MONEY: Final = Unit("money", decimals=0)
_TOLD: Final = frozenset(map(str, (Trend.RISING, Trend.FALLING)))


@dataclass(frozen=True, slots=True)
class CauseViews:
    """A section of causes as views; `noun`: of a row; `none`: said where nothing was released."""

    section: str
    noun: str
    none: str

    def views(self) -> tuple[View, View, View]:
        name = FrameColumn("name", self.noun.capitalize(), "as the catalogue names it", say=plain)
        hosts = FrameColumn("hosts", "Hosts", "that had it at least once in the window", HOSTS)
        change = FrameColumn(
            "change", "Change", "hosts more than in the window before, at this window's size",
            HOSTS, "change_", signed=True,
        )  # fmt: skip
        component = FrameColumn("component", "Part", "what of a host it is of", say=plain)
        return (
            View(
                "table", "Hosts", self.newest, (name, component, hosts, change),
                self._table_words, self._table_chart, _how_counted, self.none, self.ways,
            ),
            View(
                "trend", "Over time", self.over_time, (FROM, name, hosts),
                self._trend_words, self._trend_chart, _how_counted,
                f"No {self.noun} is significant in the newest window, if one was released.",
            ),
            View(
                "cost", "What it costs", self.cost, (name, *_COST),
                _cost_words, self._cost_chart, _how_priced, self.none,
            ),
        )  # fmt: skip

    def newest(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the newest table, significant first and by their hosts."""
        rows = self._newest(reading, state)
        return rows[rows["name"] != ALL] if len(rows) else rows

    def over_time(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return every table, newest first, of the causes that lead in the newest."""
        leading = self.newest(reading, state)
        if leading.empty:
            return leading
        names = leading[leading["told"]]["name"].head(LINES)
        rows = _numbers(reading.causes(self.section, state))
        return rows[rows["name"].isin(names)].sort_values(
            ["period_start", "value"], ascending=False
        )

    def ways(self, reading: StoreReading, state: PageState) -> Sequence[TrendLine]:
        """Return the line of every cause that was in more than one table."""
        rows = _numbers(reading.causes(self.section, state))
        if rows.empty:
            return []
        rows = rows[rows["name"] != ALL].sort_values("period_start", ascending=False)
        return trend_ways(rows)

    def cost(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return GPU hours and money of the newest table: the sum, then the dearest."""
        rows = self._newest(reading, state)
        if rows.empty:
            return rows
        half = {
            f"{of}_standard_error": (rows[f"{of}_high"] - rows[f"{of}_low"])
            / (2 * normal_quantile())
            for of in ("gpu_hours", "cost")
        }
        told = {f"{of}_told": rows["told"] for of in ("gpu_hours", "cost")}
        found = rows.rename(columns={"gpu_hours": "gpu_hours_value", "cost": "cost_value"})
        found = found.assign(**half, **told, first=rows["name"] == ALL)
        return found.sort_values(["first", "told", "cost_value"], ascending=False)

    def _newest(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        rows = reading.causes(self.section, state)
        if rows.empty:
            return rows
        newest = _numbers(rows[rows["window_start"] == rows["window_start"].max()])
        return newest.sort_values(["told", "value"], ascending=False)

    def _table_chart(self, frame: pd.DataFrame) -> Markup:
        return interval_chart(f"Hosts by {self.noun}", interval_rows(drawn(frame)), HOSTS)

    def _trend_chart(self, frame: pd.DataFrame) -> Markup:
        if frame["period_start"].nunique() == 1:
            return Markup()
        return trend_chart(f"Hosts by {self.noun}", trend_lines(frame), HOSTS)

    def _cost_chart(self, frame: pd.DataFrame) -> Markup:
        rows = interval_rows(drawn(frame), "gpu_hours_")
        return interval_chart(f"GPU hours lost by {self.noun}", rows, GPU_HOURS)

    def _table_words(self, frame: pd.DataFrame) -> str:
        told = frame[frame["told"]]
        unsure = len(frame) - len(told)
        if told.empty:
            return f"No {self.noun} is significant: all {unsure} rows are mostly noise. {UNSEEN}"
        return f"Most hosts had {leading(told, HOSTS)}.{noise_said(unsure)} {UNSEEN}"

    def _trend_words(self, frame: pd.DataFrame) -> str:
        length = length_said(float(frame["period_s"].iloc[0]))
        if frame["period_start"].nunique() == 1:
            return f"There is one window of {length} yet: a trend needs two."
        newest = frame[frame["period_start"] == frame["period_start"].max()]
        moved = [
            f"{plain(name)} is {trend}"
            for name, trend in zip(newest["name"], newest["trend"], strict=True)
            if trend in _TOLD
        ]
        said = f"{listed(moved).capitalize()}." if moved else "No trend is significant."
        return f"{said} Points of {length} with their 95 % intervals."


def _numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Give causes the columns of a view's numbers."""
    known = rows["change"].notna()
    return rows.assign(
        name=rows["cause"], value=rows["hosts"], period_start=rows["window_start"],
        period_s=rows["window_s"], change_value=rows["change"],
        change_standard_error=(rows["change_high"] - rows["change_low"]) / (2 * normal_quantile()),
        change_told=rows["trend"].isin(_TOLD), change_reason=rows["trend"].where(~known),
    )  # fmt: skip


def _how_counted(frame: pd.DataFrame) -> str:
    row = frame.sort_values("period_start").iloc[-1]
    at = moment_said(pd.Timestamp(row["period_start"]).timestamp())
    by = "corrected for the detector's own errors" if row["corrected"] else "as hosts told them"
    bias = row["bias_bound"]
    lack = (
        f" Hosts with many leave some out: a count may lack {bias:,.0f} more."
        if pd.notna(bias) and bias >= 1
        else ""
    )
    return (
        f"{series_said(row)}, {length_said(float(row['period_s']))} from {at} UTC, "
        f"{row['n_hosts']:,.0f} hosts, {by}."
        f"{lack}"
    )


def _cost_words(frame: pd.DataFrame) -> str:
    whole = frame[frame["name"] == ALL]
    hours, cost = numbers_of(whole, "gpu_hours_")[0], numbers_of(whole, "cost_")[0]
    currency = Unit("money", suffix=f" {frame['currency'].iloc[0]}", decimals=0)
    if not hours.told:
        return f"All together cost {value_said(cost, currency)}: not significant."
    return (
        f"All together lost {value_said(hours, GPU_HOURS)} ({interval_said(hours, GPU_HOURS)}), or "
        f"{value_said(cost, currency)} ({interval_said(cost, currency)})."
    )


def _how_priced(frame: pd.DataFrame) -> str:
    named = frame[frame["name"] != ALL]
    hours = sorted(set(named["hours_lost"].dropna()))
    span = f"{hours[0]:g}" if len(hours) == 1 else f"{hours[0]:g} to {hours[-1]:g}"
    row = frame.iloc[0]
    price = number_said(float(row["price"]), Unit("money", decimals=2), 2)
    return (
        f"{series_said(row)}. Hosts are released; the rest is the price list's: "
        f"{span} h lost by a host, "
        f"{row['gpus_per_host']:.3g} GPUs each, {price} {row['currency']} a GPU hour. "
        "The intervals are those of the hosts and promise nothing of it."
    )


_COST: Final = (
    FrameColumn("gpu_hours", "GPU hours lost", "hosts x GPUs x hours", GPU_HOURS, "gpu_hours_"),
    FrameColumn("cost", "Cost", "GPU hours x price", MONEY, "cost_"),
    FrameColumn("currency", "Currency", "of the price list"),
    FrameColumn("hours_lost", "Hours a host", "assumed by the price list", number=True),
)
