"""Cohorts of each series: how many hosts their releases are of, and how their windows ended."""

from __future__ import annotations

from typing import Final

import pandas as pd

from pages.wording import counted

from .page_shape import FrameColumn, View
from .page_state import PageState
from .store_reading import StoreReading

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
        domain=("domain", "max"), n_min=("n_min", "max"), newest=("until", "max")
    )
    for outcome in _OUTCOMES:
        rows = rows.merge(_counts(ended, outcome), "left", on=_KEYS)
    for outcome in _OUTCOMES:
        rows[f"windows_{outcome}"] = rows[f"windows_{outcome}"].fillna(0).astype("int64")
    tasks = {task.series: task for task in reading.fleet.tasks}
    known = rows["series"].map(tasks)
    rows["n_min"] = rows["n_min"].fillna(_of_tasks(known, "n_min")).astype("Int64")
    rows["operators"] = _of_tasks(known, "min_operators")
    return rows


def _of_tasks(tasks: pd.Series, name: str) -> pd.Series:
    """Give a number of the signed tasks; none where a task is not known."""
    return tasks.map(lambda task: getattr(task, name, None)).astype("Int64")


def _counts(ended: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """Count the windows of an outcome and the hosts of a window, by cohort."""
    found = ended[ended["outcome"] == outcome].groupby(_KEYS, as_index=False)
    rows = found.agg(windows=("windows", "sum"), host_windows=("host_windows", "sum"))
    hosts = (rows["host_windows"] / rows["windows"]).round().astype("Int64")
    return rows.assign(hosts=hosts).rename(
        columns={"windows": f"windows_{outcome}", "hosts": f"hosts_{outcome}"}
    )[[*_KEYS, f"windows_{outcome}", f"hosts_{outcome}"]]


def _words(frame: pd.DataFrame) -> str:
    return (
        "A cohort is a fixed part of the fleet whose hosts are added up together. Cohorts of a "
        "series share no host, so no two numbers differ by one host alone. Here "
        f"{'are' if len(frame) > 1 else 'is'} {counted(len(frame), 'cohort')} of "
        f"{frame['series'].nunique():,} series; the hosts are as many as reported, never which."
    )


def _whom(domain: str) -> str:
    return _WHOM.get(domain, domain)


COHORTS: Final = View(
    "cohorts",
    "Cohorts",
    cohorts,
    (
        FrameColumn("series", "Series", "task series"),
        FrameColumn("cohort", "Cohort", "its number", number=True),
        FrameColumn("domain", "Released to", "whom the task serves", say=_whom),
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
