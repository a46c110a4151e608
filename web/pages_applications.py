"""Applications: what runs on the GPUs, and on how many hosts each was seen."""

from __future__ import annotations

from typing import Final

import pandas as pd

from pages.interval_chart import interval_chart
from pages.wording import SHARE, counted, plain

from .mix_views import ROWS, MixViews, how, interval_rows, largest
from .page_shape import FrameColumn, Page, View, choices
from .store_reading import PageState, StoreReading

_NAME: Final = FrameColumn("name", "Application", "class of the application, or idle", say=plain)


def seen(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return the share of hosts that ran each application at least once in a window."""
    cells = reading.summary("seen", state)
    return cells if cells.empty else largest(cells[cells["told"]]).head(ROWS)


def _seen_words(frame: pd.DataFrame) -> str:
    return (
        f"{counted(len(frame), 'application')} significant, each with the hosts on which it ran "
        "at least once in a window, of those that measured it. Crowded hosts leave some out, "
        "which lowers a share."
    )


PAGE: Final = Page(
    "applications",
    "Applications",
    "Which applications use the fleet, and where do they run?",
    (
        *MixViews("application", _NAME, "application").views(),
        View(
            "seen", "Hosts that ran it", seen,
            (_NAME, FrameColumn("share", "Hosts", "share of the accepted hosts", SHARE)),
            _seen_words,
            lambda frame: interval_chart("Hosts that ran it", interval_rows(frame), SHARE), how,
            "No release of this span counts hosts by application: choose a longer one.",
        ),
    ),
    choices("span", "until", "series", "cohort"),
)  # fmt: skip
