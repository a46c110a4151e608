"""Views of what is counted by bins or classes over time: a heat map, newest column last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd
from markupsafe import Markup

from pages.bins import bin_low, bin_said
from pages.heat_map import HeatTable, heat_map
from pages.number import SHARE, Unit
from pages.scale import moment_said
from pages.wording import value_said

from .mix_views import FROM, how, named
from .page_shape import FrameColumn, View, numbers_of
from .page_state import PageState
from .store_reading import StoreReading

LEGEND: Final = (
    "The stronger, the larger the share; hatched is mostly noise. An empty column has no shares: "
    "its window was suppressed, or the sum they are shares of is mostly noise."
)


@dataclass(frozen=True, slots=True)
class HistogramView:
    """A histogram over time as a view.

    name, title   of the view
    by            what `StoreReading` knows it by
    noun          what a bin is of, for sentences
    share         what a cell is a share of
    """

    name: str
    title: str
    by: str
    noun: str
    share: str

    def view(self) -> View:
        """Give the view."""
        return View(
            self.name, self.title, self.frame,
            (
                FROM,
                FrameColumn("name", self.noun.capitalize(), "bin, its end left out", say=bin_said),
                FrameColumn("share", "Share", self.share, SHARE),
            ),
            self._words, self._chart, how,
            "Nothing of this was released in the span, or nothing that is told from zero.",
        )  # fmt: skip

    def frame(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the bins of each period from the first to the last that is told from zero.

        A bin that is told but once among many periods may be so by chance: it widens nothing.
        """
        cells = reading.columns(self.by, state)
        if cells.empty:
            return cells
        cells = cells.assign(bin=cells["name"].map(bin_low))
        times = cells[cells["told"]].groupby("bin").size()
        often = times[times > 1]
        told = (often if len(often) else times).index
        return cells[cells["bin"].between(told.min(), told.max())].sort_values(
            ["period_start", "bin"], ascending=[False, True]
        )

    def _words(self, frame: pd.DataFrame) -> str:
        newest = frame[frame["period_start"] == frame["period_start"].max()]
        told = newest[newest["told"]]
        known = told[told["value"].notna()].sort_values("value", ascending=False).head(1)
        if known.empty and len(told):  # where their sum is not told from zero, no share is known
            return f"The shares of the newest period are not known. {LEGEND}"
        if known.empty:
            return f"No {self.noun} of the newest period is told from zero. {LEGEND}"
        (name, number), *_ = named(known)
        return f"Most is at {bin_said(name)} ({value_said(number, SHARE)}). {LEGEND}"

    def _chart(self, frame: pd.DataFrame) -> Markup:
        rows = [*dict.fromkeys(frame.sort_values("bin", ascending=False)["name"])]
        title = f"Share by {self.noun} and time"
        return time_map(
            title, frame.assign(name=frame["name"].map(bin_said)), list(map(bin_said, rows))
        )


def time_map(title: str, frame: pd.DataFrame, rows: Sequence[str], unit: Unit = SHARE) -> Markup:
    """Draw names by time.

    frame    columns `name`, `period_start`, `period_s` and those of a number
    rows     the names from top to bottom
    """
    starts = [
        pd.Timestamp(start).timestamp() for start in sorted(frame["period_start"].unique())
    ]  # fmt: skip
    seconds = any(at % 60 for at in starts)
    said = {moment_said(at): _short(at, float(frame["period_s"].iloc[0]), seconds) for at in starts}
    cells = {
        (str(name), moment_said(pd.Timestamp(start).timestamp())): number
        for name, start, number in zip(
            frame["name"], frame["period_start"], numbers_of(frame), strict=True
        )
    }
    return heat_map(title, HeatTable(rows, list(said), cells, said, named_in_full=True), unit)


def _short(at: float, length_s: float, seconds: bool) -> str:
    """Name a column's begin: with seconds where some have them, at midnight by its day."""
    when = pd.Timestamp(at, unit="s")
    if length_s >= _DAY_S or at % _DAY_S == 0:
        return f"{when.day} {when:%b}"
    return f"{when:%H:%M:%S}" if seconds else f"{when:%H:%M}"


_DAY_S: Final = 86_400.0
