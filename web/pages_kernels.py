"""Kernels: families over time, and how long kernels run and how much they copy."""

from __future__ import annotations

from typing import Final

import pandas as pd
from markupsafe import Markup

from pages.wording import plain

from .histogram_views import LEGEND, HistogramView, time_map
from .mix_views import FROM, SHARE_COLUMN, how, measured, working
from .page_shape import FrameColumn, Page, View, choices
from .store_reading import PageState, StoreReading


def families(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return the families that are significant in any period, newest first."""
    cells = measured(reading.columns("family", state), state)
    if cells.empty:
        return cells
    found: pd.DataFrame = cells[cells["name"].isin(cells[cells["told"]]["name"])]
    return found.sort_values(["period_start", "value"], ascending=False)


def _family_map(frame: pd.DataFrame) -> Markup:
    shown = working(frame)
    totals = shown.groupby("name")["value"].sum().sort_values(ascending=False)
    rows = [plain(name) for name in totals.index]
    named = shown.assign(name=shown["name"].map(plain))
    return time_map("Share of GPU time by kernel family and time", named, rows)


def _family_words(frame: pd.DataFrame) -> str:
    families = working(frame)["name"].nunique()
    known = "1 family is" if families == 1 else f"{families} families are"
    return f"{known} significant at some time. {LEGEND}"


PAGE: Final = Page(
    "kernels",
    "Kernels",
    "Which kernels fill the time, how long do they run, and how much do they copy?",
    (
        View(
            "families", "Families over time", families,
            (FROM, FrameColumn("name", "Family", "kernel family, or idle", say=plain),
             SHARE_COLUMN),
            _family_words, _family_map, how,
        ),
        HistogramView(
            "durations", "How long kernels run", "duration", "duration",
            "of the GPU time of timed kernels",
        ).view(),
        HistogramView(
            "copies", "How much copies carry", "copy_size", "size", "of what was copied"
        ).view(),
    ),
    choices("span", "until", "measure", "series", "cohort"),
)  # fmt: skip
