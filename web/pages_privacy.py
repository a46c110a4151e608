"""Privacy: what was spent, what was kept back and why, in plain words."""

from __future__ import annotations

from typing import Final

import pandas as pd

from pages.wording import counted
from wire.rejection import Reason

from .page_shape import EVERYBODY, SPAN_CHOICE, FrameColumn, Page, View
from .page_state import PageState
from .store_reading import StoreReading

WHY: Final[dict[str, str]] = {
    Reason.N_MIN: "too few hosts for the noise that was promised",
    Reason.OPERATORS: "hosts of too few operators",
    Reason.OUTSIDE_LARGEST_OPERATOR: "too many hosts of one operator",
    Reason.CHECK_SUM: "check words that do not add up",
    Reason.IMPOSSIBLE_SUM: "a sum that honest hosts cannot have sent",
    Reason.RETENTION: "no answer within its retention",
    Reason.ROSTER_BOUND: "a roster that outgrew its task",
    Reason.TASK_UNKNOWN: "its task was gone",
}
"""Reasons of suppressed windows, for people."""


def budget(reading: StoreReading, _: PageState) -> pd.DataFrame:
    """Return what each series may say about one host in any week."""
    return reading.visible(reading.kept(("budget",), reading.fleet.budget))


def endings(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return how the windows of each series ended, over the span."""
    found = reading.ends(state)
    recent = found[found["outcome"] != "rejected"]
    grouped = recent.groupby(["series", "outcome", "reason"], as_index=False)
    rows = grouped.agg(
        windows=("windows", "sum"), hosts=("host_windows", "sum"), newest=("until", "max")
    )
    return rows.assign(hosts=(rows["hosts"] / rows["windows"]).round().astype("Int64"))


def why(reason: str) -> str:
    """Say why a window has no release."""
    return WHY.get(reason, reason)


def _budget_words(frame: pd.DataFrame) -> str:
    epsilon = frame["epsilon"].max()
    return (
        f"All series together say at most epsilon {epsilon:g} about one host in any week. Looking "
        "here spends nothing."
    )


def _ending_words(frame: pd.DataFrame) -> str:
    kept = int(frame[frame["outcome"] == "suppressed"]["windows"].sum())
    total = int(frame["windows"].sum())
    if not kept:
        return f"All of {counted(total, 'window')} were released."
    return f"{counted(kept, 'window')} of {total:,} were kept back, each with its reason."


_BUDGET: Final = (
    FrameColumn("series", "Series", "task series"),
    FrameColumn("domain", "For", "whom the task serves"),
    FrameColumn("epsilon", "Epsilon", "of its task: one host, any 168 hours", number=True),
    FrameColumn("delta", "Delta", "of its task", number=True),
    FrameColumn("weight", "Weight", "of a host's budget of any 168 hours", number=True),
    FrameColumn("spent", "Spent", "of that budget in the newest 168 hours, at most", number=True),
    FrameColumn("windows_ended", "Windows", "that ended in them, each of which costs", number=True),
    FrameColumn("windows_suppressed", "Kept back", "of these, suppressed", number=True),
)
_ENDINGS: Final = (
    FrameColumn("series", "Series", "task series"),
    FrameColumn("outcome", "Outcome", "released or suppressed"),
    FrameColumn("reason", "Reason", "why there is no release", say=why),
    FrameColumn("windows", "Windows", "how many", number=True),
    FrameColumn("hosts", "Hosts", "that reported, mean", number=True),
    FrameColumn("newest", "Newest", "end of the newest, UTC"),
)

PAGE: Final = Page(
    "privacy",
    "Privacy",
    "What do these numbers give away about one host, and what was kept back?",
    (
        View(
            "budget", "Budget", budget, _BUDGET,
            _budget_words,
        ),
        View(
            "windows", "How windows ended", endings, _ENDINGS,
            _ending_words,
        ),
    ),
    (SPAN_CHOICE,),
    EVERYBODY,
)  # fmt: skip
