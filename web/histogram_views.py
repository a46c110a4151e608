"""Views of what is counted by bins or classes over time, and of the cohorts of each series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd
from markupsafe import Markup

from pages.heat_map import HeatTable, heat_map
from pages.svg import moment_said
from pages.wording import SHARE, bin_low, bin_said, counted, value_said

from .mix_views import FROM, how, named
from .page_shape import FrameColumn, View, numbers_of
from .store_reading import PageState, StoreReading

LEGEND: Final = (
    "The stronger, the larger the share; hatched is mostly noise. An empty column has no shares: "
    "its window was suppressed, or the sum they are shares of is mostly noise."
)


@dataclass(frozen=True, slots=True)
class HistogramView:
    """A histogram over time; `by`: what `StoreReading` knows it by; `share`: of what."""

    name: str
    title: str
    by: str
    noun: str
    share: str

    def view(self) -> View:
        return View(
            self.name, self.title, self.frame,
            (
                FROM,
                FrameColumn("name", self.noun.capitalize(), "bin, its end left out", say=bin_said),
                FrameColumn("share", "Share", self.share, SHARE),
            ),
            self._words, self._chart, how,
            "Nothing of this was released in the span, or nothing that is significant.",
        )  # fmt: skip

    def frame(self, reading: StoreReading, state: PageState) -> pd.DataFrame:
        """Return the bins of each period from the first to the last that is significant.

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
        if known.empty and len(told):  # where their sum is not significant, no share is known
            return f"The shares of the newest period are not known. {LEGEND}"
        if known.empty:
            return f"No {self.noun} of the newest period is significant. {LEGEND}"
        (name, number), *_ = named(known)
        return f"Most is at {bin_said(name)} ({value_said(number, SHARE)}). {LEGEND}"

    def _chart(self, frame: pd.DataFrame) -> Markup:
        rows = [*dict.fromkeys(frame.sort_values("bin", ascending=False)["name"])]
        title = f"Share by {self.noun} and time"
        return time_map(
            title, frame.assign(name=frame["name"].map(bin_said)), list(map(bin_said, rows))
        )


def time_map(title: str, frame: pd.DataFrame, rows: Sequence[str]) -> Markup:
    """Draw names by time; `rows` are the names from top to bottom."""
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
    return heat_map(title, HeatTable(rows, list(said), cells, said, named_in_full=True), SHARE)


def _short(at: float, length_s: float, seconds: bool) -> str:
    """Name a column's begin: with seconds where some have them, at midnight by its day."""
    when = pd.Timestamp(at, unit="s")
    if length_s >= _DAY_S or at % _DAY_S == 0:
        return f"{when.day} {when:%b}"
    return f"{when:%H:%M:%S}" if seconds else f"{when:%H:%M}"


_DAY_S: Final = 86_400.0

_WHOM: Final = {
    "fleet": "everybody",
    "operator": "one operator alone",
    "demo": "a demo, of nobody's hosts",
}
_OUTCOMES: Final = ("released", "suppressed")
_KEYS: Final = ["series", "cohort"]


def cohorts(reading: StoreReading, state: PageState) -> pd.DataFrame:
    """Return a row for each cohort of the series that the viewer may see, over the span."""
    ended = reading.ends(state)
    ended = ended[ended["outcome"].isin(_OUTCOMES)]
    if ended.empty:
        return pd.DataFrame()
    rows = ended.groupby(_KEYS, as_index=False).agg(
        domain=("domain", "first"), n_min=("n_min", "max"), newest=("until", "max")
    )
    for outcome in _OUTCOMES:
        found = ended[ended["outcome"] == outcome].groupby(_KEYS)
        each = rows[_KEYS].join(found[["windows", "host_windows"]].sum(), on=_KEYS)
        rows[f"windows_{outcome}"] = each["windows"].fillna(0).astype("int64")
        hosts = (each["host_windows"] / each["windows"]).round()
        rows[f"hosts_{outcome}"] = hosts.astype("Int64")
    tasks = {task.series: task for task in reading.fleet.tasks}
    known = rows["series"].map(tasks)
    rows["n_min"] = rows["n_min"].fillna(_of_tasks(known, "n_min")).astype("Int64")
    rows["operators"] = _of_tasks(known, "min_operators")
    return rows


def _of_tasks(tasks: pd.Series, name: str) -> pd.Series:
    """Give a number of the signed tasks; none where a task is not known."""
    return tasks.map(lambda task: getattr(task, name, None)).astype("Int64")


def _words(frame: pd.DataFrame) -> str:
    return (
        "A cohort is a fixed part of the fleet whose hosts are added up together. Cohorts of a "
        "series share no host, so no two numbers differ by one host alone. Here "
        f"{'are' if len(frame) > 1 else 'is'} {counted(len(frame), 'cohort')} of "
        f"{frame['series'].nunique():,} series; the hosts are as many as reported, on a grid, "
        "never which."
    )


COHORTS: Final = View(
    "cohorts",
    "Cohorts",
    cohorts,
    (
        FrameColumn("series", "Series", "task series"),
        FrameColumn("cohort", "Cohort", "its number", number=True),
        FrameColumn(
            "domain", "Released to", "whom the task serves", say=lambda of: _WHOM.get(of, of)
        ),
        FrameColumn("hosts_released", "Hosts", "in a release, mean", number=True),
        FrameColumn("n_min", "Needed", "hosts that a release needs, as far as known", number=True),
        FrameColumn(
            "operators", "Operators", "that their hosts must be of, by its task", number=True
        ),
        FrameColumn("windows_released", "Released", "windows, over the span", number=True),
        FrameColumn("windows_suppressed", "Kept back", "windows, over the span", number=True),
        FrameColumn("hosts_suppressed", "Hosts then", "that had reported, mean", number=True),
        FrameColumn("newest", "Newest", "end of the newest window, UTC"),
    ),
    _words,
    note=lambda _: "What a release needs, and of how many operators, is in the signed tasks: "
    "the option --tasks names their folder.",
)  # fmt: skip
