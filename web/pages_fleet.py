"""Fleet: what the GPUs do, now and over time, by model, and what changed."""

from __future__ import annotations

from typing import Final

import pandas as pd
from markupsafe import Markup

from pages.heat_map import HeatTable, heat_map
from pages.wording import SHARE, counted, plain

from .mix_views import MINUTE_COLUMN, NO_WORK, SHARE_COLUMN, MixViews, how, measured
from .page_shape import Choice, FrameColumn, Page, View, choices, numbers_of
from .store_reading import ALL_MODELS, EVERY_MODEL, PageState, StoreReading

_FAMILY: Final = FrameColumn("name", "Family", "kernel family, or idle", say=plain)
_MIX: Final = MixViews("family", _FAMILY, "kernel family", models=True)


def by_model(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return the newest mix of each GPU model; rows of models that nobody has are left out."""
    cells = measured(reading.summary("family", state, EVERY_MODEL), state)
    if cells.empty:
        return cells
    known = cells[cells["told"] & ~cells["name"].isin(NO_WORK)]
    wanted = cells["model"].isin(known["model"]) & cells["name"].isin(known["name"])
    if state.model != ALL_MODELS:
        wanted &= cells["model"] == state.model
    found: pd.DataFrame = cells[wanted]
    return found.sort_values(["model", "value"], ascending=[True, False])


def _model_map(frame: pd.DataFrame) -> Markup:
    models = list(dict.fromkeys(frame["model"]))
    totals = frame.groupby("name")["value"].sum().sort_values(ascending=False)
    names = zip(map(plain, frame["name"]), map(str, frame["model"]), strict=True)
    cells = dict(zip(names, numbers_of(frame), strict=True))
    table = HeatTable([plain(name) for name in totals.index], models, cells)
    return heat_map("Kernel families by GPU model", table, SHARE)


def _model_words(frame: pd.DataFrame) -> str:
    return (
        f"{counted(frame['model'].nunique(), 'GPU model')}: the stronger, the larger the share of "
        "its measured time. A hatched cell is mostly noise."
    )


def _models(reading: StoreReading, _: PageState) -> list[tuple[str, str]]:
    frame = by_model(reading, PageState())
    models = [] if frame.empty else sorted(set(frame["model"]))
    return [(ALL_MODELS, "all"), *((model, model) for model in models)]


PAGE: Final = Page(
    "fleet",
    "Fleet",
    "What do the GPUs spend their time on, and what has changed?",
    (
        *_MIX.views(),
        View(
            "models", "By GPU model", by_model,
            (FrameColumn("model", "Model", "GPU model"), _FAMILY, SHARE_COLUMN, MINUTE_COLUMN),
            _model_words, _model_map, how,
        ),
    ),
    (
        *choices("span", "until", "measure"), Choice("model", "GPU model", _models),
        *choices("series", "cohort"),
    ),
)  # fmt: skip
