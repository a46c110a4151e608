"""Run the demo: start the fleet, follow the releases, sum up what was seen."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from privacy.planner import epsilon_of_mu

from .demo_fleet import DemoFleet
from .demo_plan import MIX_SERIES, WINDOW_S
from .demo_screen import DemoScreen
from .role_processes import Family

if TYPE_CHECKING:
    from .demo_tally import DemoTally

POLL_S: Final = 0.5
GRACE_S: Final = 30.0
"""How long after the last window's lateness the demo waits for its release."""


def follow(fleet: DemoFleet, family: Family, show: Callable[[DemoScreen], None]) -> DemoTally:
    """Follow the releases until the last window is out; give everything seen.

    Raises      ChildFailed, TimeoutError
    """
    # While the hosts prepare: loading pandas then delays nobody.
    from .demo_tally import DemoTally

    tally = DemoTally(fleet.tasks, fleet.catalogue)
    deadline = fleet.last_window + WINDOW_S + fleet.tasks[0].lateness_s + GRACE_S
    while True:
        family.check()
        refresh(fleet, tally)
        show(frame(fleet, tally))
        if complete(fleet, tally):
            return tally
        if time.time() > deadline:
            return tally
        time.sleep(POLL_S)


def released_so_far(fleet: DemoFleet) -> DemoTally:
    """Give everything that a run has released by now, and none of it counted by half."""
    from .demo_tally import DemoTally

    tally = DemoTally(fleet.tasks, fleet.catalogue)
    refresh(fleet, tally)
    return tally


def complete(fleet: DemoFleet, tally: DemoTally) -> bool:
    """Whether the last window of every series has been released and its truth is written."""
    return all(task.last_window in tally.windows(task.series) for task in fleet.tasks)


def refresh(fleet: DemoFleet, tally: DemoTally) -> None:
    """Read what has been released and what the simulated hosts wrote."""
    from aggregator.releases.releases import read_releases

    from .demo_tally import read_truths

    folders = fleet.folders
    if any(folders.releases.rglob("*.parquet")):
        releases = read_releases(folders.releases)
        tally.take(releases, read_truths(folders.truth, fleet.processes))


def frame(fleet: DemoFleet, tally: DemoTally) -> DemoScreen:
    """What the screen shows now."""
    windows = tally.windows(MIX_SERIES)
    plan = fleet.options.plan
    return DemoScreen(
        window=len(windows),
        windows=plan.windows,
        hosts=tally.hosts(MIX_SERIES, windows[-1]) if windows else 0,
        roster=plan.roster,
        gpus=plan.gpus,
        epsilon=fleet.tasks[0].epsilon_millionths / 1e6,
        epsilon_spent=epsilon_spent(fleet, tally),
        rejections=rejections(fleet),
        latest=tally.mix[-1] if windows else [],
        mean=tally.mean.mean(),
        stage=_stage(fleet, len(windows)),
    )


def _stage(fleet: DemoFleet, released: int) -> str:
    until_s = fleet.first_window - time.time()
    if until_s > 0:
        return f"first window in {until_s:.0f} s"
    if released < fleet.options.plan.windows:
        return f"windows of {WINDOW_S} s"
    return "all windows are released"


def epsilon_spent(fleet: DemoFleet, tally: DemoTally) -> float:
    """The epsilon that the windows released so far amount to, at the run's delta.

    Spent weight w of a budget of 1 is mu sqrt(w) of Gaussian privacy (Dong, Roth, Su 2019).
    """
    spent = 0.0
    for task in fleet.tasks:
        weight = sum(section.weight_millionths for section in task.sections) / 1e6
        spent += weight * len(tally.windows(task.series)) / task.windows
    if not spent:
        return 0.0
    first = fleet.tasks[0]
    return epsilon_of_mu(first.mu_1e9 / 1e9 * math.sqrt(min(spent, 1.0)), first.delta_1e12 / 1e12)


def rejections(fleet: DemoFleet) -> dict[str, int]:
    """Reports refused so far, by reason, as Leader and Helper count them."""
    counted: Counter[str] = Counter()
    for path, names in (
        (fleet.folders.leader / "state" / "status.json", ("rejected",)),
        (fleet.folders.helper / "state" / "status.json", ("cleared",)),
    ):
        try:
            status = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        for name in names:
            counted.update(status.get(name, {}))
    return dict(counted)


def live_reports(fleet: DemoFleet) -> dict[str, int]:
    """Report id -> window start, of what this host's agent sent."""
    path = fleet.folders.agents / "live" / "report-ids.jsonl"
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    entries = [json.loads(line) for line in lines]
    return {entry["report_id"]: entry["window"] for entry in entries}


def latencies_s(fleet: DemoFleet) -> list[float]:
    """Seconds from the end of each window of the mix to its release."""
    from aggregator.releases.releases import read_releases

    frame = read_releases(fleet.folders.releases, series=MIX_SERIES)
    rows = frame[["window_start", "released_at"]].drop_duplicates()
    waits = rows["released_at"] - rows["window_start"]
    return [float(wait) - WINDOW_S for wait in waits.dt.total_seconds()]
