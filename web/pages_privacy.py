"""Privacy: what was spent and kept back, of which cohorts, who learns what, and what is signed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import pandas as pd

from pages.threat_words import THREATS, THREATS_IN_SHORT
from pages.wording import counted
from wire.rejection import Reason

from .histogram_views import COHORTS
from .page_shape import EVERYBODY, FrameColumn, Page, View, choices
from .store_reading import PageState, StoreReading

TRANSCRIPT_ADDRESS: Final = "/privacy/transcript"

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


def threats(_: StoreReading, __: PageState) -> pd.DataFrame:
    """Return who learns what, whatever the store holds."""
    return pd.DataFrame([asdict(party) for party in THREATS])


def signed(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return what the transcripts have to hold: released windows by series, over the span."""
    found = reading.ends(state)
    rows = found[found["outcome"] == "released"].groupby("series", as_index=False)
    return rows.agg(windows=("windows", "sum"), newest=("until", "max"))


def _budget_words(frame: pd.DataFrame) -> str:
    known = frame["epsilon"].dropna()
    parts = ["Looking here spends nothing."]
    if len(known) < len(frame):
        parts.insert(0, "Epsilon of a series is known once a window of it was released.")
    if len(known):
        most = (
            f"All series together say at most epsilon {known.max():g} about one host in any week."
        )
        parts.insert(0, most)
    return " ".join(parts)


def _ending_words(frame: pd.DataFrame) -> str:
    kept = int(frame[frame["outcome"] == "suppressed"]["windows"].sum())
    total = int(frame["windows"].sum())
    if not kept:
        return f"All of {counted(total, 'window')} were released."
    were = "was" if kept == 1 else "were"
    return f"{kept:,} of {counted(total, 'window')} {were} kept back, each with its reason."


_SIGNED_BY_BOTH: Final = (
    "Leader and Helper each keep a chain of all releases, in which each names the one before, and "
    "both sign it. Where the two transcripts agree, both stand for the same releases: none was "
    "made twice, changed or taken back unseen."
)
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
    FrameColumn(
        "reason", "Reason", "why there is no release", say=lambda reason: WHY.get(reason, reason)
    ),
    FrameColumn("windows", "Windows", "how many", number=True),
    FrameColumn("hosts", "Hosts", "that reported, mean", number=True),
    FrameColumn("newest", "Newest", "end of the newest, UTC"),
)
_THREATS: Final = (
    FrameColumn("who", "Who", "a party, or whoever looks"),
    FrameColumn("learns", "Learns", "what it gets to know"),
    FrameColumn("hidden", "Does not learn", "what stays hidden from it"),
    FrameColumn("worst", "Can do at its worst", "where it does not behave"),
)
_SIGNED: Final = (
    FrameColumn("series", "Series", "task series"),
    FrameColumn("windows", "Released", "windows over the span", number=True),
    FrameColumn("newest", "Newest", "end of the newest, UTC"),
)

PAGE: Final = Page(
    "privacy",
    "Privacy",
    "What do these numbers give away about one host, and what was kept back?",
    (
        View("budget", "Budget", budget, _BUDGET, _budget_words),
        View("windows", "How windows ended", endings, _ENDINGS, _ending_words),
        COHORTS,
        View("threats", "Who learns what", threats, _THREATS, lambda _: THREATS_IN_SHORT),
        View(
            "transcript", "Signed by both", signed, _SIGNED,
            lambda _: _SIGNED_BY_BOTH, action=("Verify the transcript", TRANSCRIPT_ADDRESS),
        ),
    ),
    choices("span"),
    EVERYBODY,
)  # fmt: skip
