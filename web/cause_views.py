"""Views that every root-cause table has: hosts by cause, over time, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd
from markupsafe import Markup

from aggregator.statistics.causes import Trend
from aggregator.statistics.ratios import normal_quantile
from analytics.costs import ALL
from pages.interval_chart import IntervalRow, interval_chart
from pages.number import GPU_HOURS, HOSTS, Unit
from pages.scale import length_said, moment_said
from pages.trend_chart import TrendLine, trend_chart
from pages.wording import interval_said, listed, number_said, plain, value_said

from .mix_views import FROM, drawn, interval_rows, noise_said, series_said, trend_lines
from .page_shape import FrameColumn, View, numbers_of
from .page_state import PageState
from .store_reading import StoreReading

LINES: Final = 6
UNSEEN: Final = "A host that does not measure it counts as one without."
MONEY: Final = Unit("money", decimals=0)
_TOLD: Final = frozenset(map(str, (Trend.RISING, Trend.FALLING)))


@dataclass(frozen=True, slots=True)
class CauseViews:
    """A section of causes as views.

    section    of the catalogue: incidents or hardware_faults
    noun       what a row is, for sentences
    none       what is said where no table was released
    """

    section: str
    noun: str
    none: str

    def views(self) -> tuple[View, View, View]:
        """Give the three views."""
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
                f"No {self.noun} is told from zero in the newest window, if one was released.",
            ),
            View(
                "cost", "What it costs", self.cost, (name, *_COST),
                _cost_words, self._cost_chart, _how_priced, self.none,
            ),
        )  # fmt: skip

    def newest(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the newest table, told from zero first and by their hosts."""
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
            ["period_start", "value"], ascending=[False, False]
        )

    def ways(self, reading: StoreReading, state: PageState) -> Sequence[TrendLine]:
        """Return the line of every cause that was in more than one table."""
        rows = _numbers(reading.causes(self.section, state))
        if rows.empty:
            return []
        rows = rows[rows["name"] != ALL].sort_values("period_start", ascending=False)
        return [line for line in trend_lines(rows) if len(line.points) > 1]

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
        shown = drawn(frame)
        rows = [
            IntervalRow(plain(name), number)
            for name, number in zip(shown["name"], numbers_of(shown, "gpu_hours_"), strict=True)
        ]
        return interval_chart(f"GPU hours lost by {self.noun}", rows, GPU_HOURS)

    def _table_words(self, frame: pd.DataFrame) -> str:
        told = frame[frame["told"]]
        unsure = len(frame) - len(told)
        if told.empty:
            return f"No {self.noun} is told from zero: all {unsure} rows are mostly noise. {UNSEEN}"
        leading = [
            f"{plain(name)} ({value_said(number, HOSTS)})"
            for name, number in zip(told["name"].head(3), numbers_of(told.head(3)), strict=True)
        ]
        return f"Most hosts had {listed(leading)}.{noise_said(unsure)} {UNSEEN}"

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
        said = f"{listed(moved).capitalize()}." if moved else "Nothing is told to rise or fall."
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
        return f"All together cost {value_said(cost, currency)}: not told from nothing."
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
