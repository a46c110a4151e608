"""What hosts spent of their privacy budget, by series; nothing here spends any.

Releases say which windows ended, suppressed ones too; what one costs is in the signed task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from aggregator.enrolment.tasks import MAX_FILE_BYTES, TASK_SUFFIX
from privacy.calibrate import MILLION, WEEK_S, windows_touched
from transport.files.own_names import files_ending
from wire import labels
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.task import Task

BUDGET_COLUMNS: Final = (
    "series", "domain", "window_s", "epsilon", "delta", "weight", "windows_week",
    "windows_ended", "windows_suppressed", "spent", "until",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeriesTask:
    """What a series asks of a host's budget.

    weight      of all its sections, 0 .. 1 of the budget of any 168 hours
    windows     most of its windows that 168 hours touch: so many the weight is for
    n_min       fewest hosts of a release
    min_operators   fewest operators that they are of; 0: no such rule
    """

    series: str
    window_s: int
    weight: float
    windows: int
    n_min: int
    min_operators: int


def tasks_in(folder: Path) -> list[SeriesTask]:
    """Read the newest versions of signed tasks, for people: signatures are not checked.

    Raises      FileNotFoundError, ReportRejected for a file that is no task
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of signed tasks at {folder}")
    newest: dict[str, Task] = {}
    for path in files_ending(folder, TASK_SUFFIX):
        if path.stat().st_size <= MAX_FILE_BYTES:
            task = _task_of(path)
            if task.series not in newest or newest[task.series].version < task.version:
                newest[task.series] = task
    return [series_task(task) for task in newest.values()]


def _task_of(path: Path) -> Task:
    """Read a signed task; what is refused is said with the file's name."""
    try:
        return Task.decode_body(Signed.decode(path.read_bytes(), labels.TASK).body)
    except ReportRejected as error:
        raise ReportRejected(error.reason, f"{error.expected} in {path.name}", error.got) from error


def series_task(task: Task) -> SeriesTask:
    weight = sum(section.weight_millionths for section in task.sections) / MILLION
    windows = windows_touched(task.window_s, task.windows)
    return SeriesTask(task.series, task.window_s, weight, windows, task.n_min, task.min_operators)


def budget(outcomes: Sequence[pd.DataFrame], tasks: Sequence[SeriesTask] = ()) -> pd.DataFrame:
    """Say by series what a host spent at most in the newest 168 hours.

    outcomes    rows of `ReleaseSource.outcomes`, by the hour first, then by longer periods: a
                series is read where it comes first
    tasks       of the series; without them `weight` and `spent` are empty
    Returns     BUDGET_COLUMNS: `spent` is the part of a host's budget that its windows which ended
                in those hours cost, if it reported in each, at most `weight`; over all series the
                sum is at most 1, which is `epsilon` at `delta`
    """
    known: Mapping[str, SeriesTask] = {task.series: task for task in tasks}
    rows: dict[str, dict[str, Any]] = {}
    ended = [frame[frame["outcome"].isin(("released", "suppressed"))] for frame in outcomes]
    newest = max((frame["until"].max() for frame in ended if len(frame)), default=None)
    for frame in ended:
        for series, windows in frame.groupby("series"):
            name = str(series)
            rows.setdefault(name, _row(name, windows, newest, known.get(name)))
    return pd.DataFrame(list(rows.values()), columns=list(BUDGET_COLUMNS))


def _row(
    series: str, windows: pd.DataFrame, newest: Any, task: SeriesTask | None
) -> dict[str, Any]:
    recent = windows[windows["until"] > newest - pd.Timedelta(seconds=WEEK_S)]
    ended, domains = _most(recent), windows["domain"].dropna()
    return {
        "series": series,
        "domain": None if domains.empty else str(domains.iloc[-1]),
        "window_s": int((windows["covered_s"] / windows["windows"]).max()),
        "epsilon": windows["epsilon"].max(),
        "delta": windows["delta"].max(),
        "weight": np.nan if task is None else task.weight,
        "windows_week": np.nan if task is None else task.windows,
        "windows_ended": ended,
        "windows_suppressed": _most(recent[recent["outcome"] == "suppressed"]),
        "spent": np.nan if task is None else task.weight * min(ended / task.windows, 1.0),
        "until": windows["until"].max(),
    }


def _most(windows: pd.DataFrame) -> int:
    """Windows of the cohort that had most: no host is in two cohorts of a series."""
    return int(windows.groupby("cohort")["windows"].sum().max()) if len(windows) else 0
