"""Follow a demo: its releases as they come, its pages, and what the run has cost so far."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text

from privacy.plan import epsilon_of_mu
from simulator.cell_view import listed

from .demo_fleet import DemoFleet
from .demo_plan import MIX_SERIES, WINDOW_S
from .processes import Family, RoleProcess
from .stage import LESS, PLUS_MINUS, Progress, families, page_line, readable, with_error

if TYPE_CHECKING:
    from .demo_tally import DemoTally

POLL_S: Final = 0.5
GRACE_S: Final = 30.0
"""How long after the last window's lateness the demo waits for its release."""
LEADER_TRANSCRIPT: Final = "leader-transcript.json"
HELPER_TRANSCRIPT: Final = "helper-transcript.json"


class DemoPages:
    """The fleet's pages and this host's, each a server of its own.

    They outlive the fleet where the demo is served on, so `family` is their own.
    """

    def __init__(
        self, fleet: DemoFleet, family: Family, open_page: Callable[[str], None] | None
    ) -> None:
        """`open_page` is given the fleet's address once it is there."""
        self._fleet, self._family, self._open = fleet, family, open_page
        self._addresses: dict[str, str] = {}
        self._servers: dict[str, RoleProcess] = {}

    def start(self, results: Path) -> None:
        """Serve the store, which fills as windows are released, and what this host's agent keeps.

        results     where the run's transcripts will be, by which the pages verify releases
        """
        fleet, folders = self._fleet, self._fleet.folders
        self._servers["the fleet"] = self._family.start(
            "web", "pointillist", "web", "--json", "--listen", "localhost:0",
            "--store", str(folders.releases), "--rollups", str(folders.base / "rollups"),
            "--record", str(folders.logs / "queries.jsonl"), "--tasks", str(folders.signed),
            "--leader-transcript", str(results / LEADER_TRANSCRIPT),
            "--helper-transcript", str(results / HELPER_TRANSCRIPT),
            "--leader", fleet.leader_pk.hex(), "--helper", fleet.helper_pk.hex(),
        )  # fmt: skip
        if fleet.plan.live:
            words = ("agent", "web", "--json", "--port", "0", "--config", fleet.toml("live"))
            self._servers["this host"] = self._family.start("host-page", "pointillist", *words)

    def look(self) -> dict[str, str]:
        """Give what is shown -> address, as known by now; a server that ended has none."""
        for name, server in self._servers.items():
            if name not in self._addresses and (told := server.heard()) is not None:
                self._addresses[name] = str(told["address"])
        running = {name: at for name, at in self._addresses.items() if self._servers[name].running}
        if self._open is not None and "the fleet" in running:
            self._open(running["the fleet"])
            self._open = None
        return {name: running[name] for name in self._servers if name in running}

    def serve(self, tell: Callable[[str], None]) -> None:
        told: set[str] = set()
        while any(server.running for server in self._servers.values()):
            for name, address in self.look().items():
                if name not in told:
                    told.add(name)
                    tell(f"{page_line(name, address)}, until Ctrl-C")
            time.sleep(POLL_S)


def follow(
    fleet: DemoFleet, family: Family, pages: DemoPages | None, show: Callable[[Progress], None]
) -> DemoTally:
    """Follow the releases until the last window is out. Raises ChildFailed."""
    first = fleet.tasks[0]
    deadline = first.last_window + WINDOW_S + first.lateness_s + GRACE_S
    tally = None
    while True:
        family.check()
        tally = released(fleet, tally)
        show(progress(fleet, tally, {} if pages is None else pages.look()))
        complete = all(task.last_window in tally.windows(task.series) for task in fleet.tasks)
        if complete or time.time() > deadline:
            return tally
        time.sleep(POLL_S)


def released(fleet: DemoFleet, tally: DemoTally | None = None) -> DemoTally:
    """Take what has been released by now, and the simulated hosts have written the truth of.

    tally       what was taken before; None: a new one, in which nothing is counted by half
    """
    # While the hosts prepare: loading pandas then delays nobody.
    from aggregator.releases.releases import read_releases

    from .demo_tally import DemoTally, read_truths

    tally = tally or DemoTally(fleet.tasks, fleet.catalogue)
    folders = fleet.folders
    if any(folders.releases.rglob("*.parquet")):
        releases = read_releases(folders.releases)
        tally.take(releases, read_truths(folders.truth, fleet.processes))
    return tally


def progress(fleet: DemoFleet, tally: DemoTally, pages: Mapping[str, str]) -> Progress:
    plan, windows, mix = fleet.plan, tally.windows(MIX_SERIES), tally.mix
    latest, done = (mix[-1] if mix else []), len(windows)
    epsilon = fleet.tasks[0].epsilon_millionths / 1e6
    spent = f"{epsilon_spent(fleet, tally):.2f} of {epsilon:g}"
    stage, headline = _stage(fleet, done), Text()
    if done:
        hosts = tally.hosts(MIX_SERIES, windows[-1])
        headline.append(f"{hosts:,}", "bold").append(f" of {plan.roster:,} hosts in the sum · ")
        told = [view for view in families(latest) if view.told][:1]
        numbers = "".join(f"{readable(view.cell)} {with_error(view)} %, " for view in told)
        line = (
            f"window {done} of {plan.windows}: {numbers}{hosts:,} of {plan.roster:,} hosts, "
            f"epsilon {spent}"
        )
    else:
        headline.append(f"{plan.roster:,} hosts · ")
        line = f"{plan.roster:,} hosts enrolled, {stage}"
    headline.append(f"{plan.gpus:,} GPUs · ").append(f"epsilon spent {spent}", "bold yellow")
    refused = listed(rejections(fleet)) or "nothing yet"
    return Progress(
        title="[bold]Pointillist demo[/bold] · see the fleet, never the machine",
        subtitle="throw-away identities, budget and roster · label: demo",
        colour="cyan",
        headline=headline,
        note=f"window {done} of {plan.windows} · {stage}",
        done=done,
        due=plan.windows,
        latest=latest,
        mean=tally.mean.mean(),
        below=(
            Text(f"refused (planted by the demo): {refused}", "dim"),
            Text(f"{PLUS_MINUS}\n{LESS}", "dim"),
        ),
        line=line,
        foot="Ctrl-C ends it",
        pages=pages,
    )


def _stage(fleet: DemoFleet, done: int) -> str:
    until_s = fleet.tasks[0].first_window - time.time()
    if until_s > 0:
        return f"first window in {until_s:.0f} s"
    if done < fleet.plan.windows:
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
    for party, name in ((fleet.folders.leader, "rejected"), (fleet.folders.helper, "cleared")):
        try:
            status = json.loads((party / "state" / "status.json").read_text())
        except (OSError, ValueError):
            continue
        counted.update(status.get(name, {}))
    return dict(counted)


def latencies_s(fleet: DemoFleet) -> list[float]:
    """Seconds from the end of each window of the mix to its release."""
    from aggregator.releases.releases import read_releases

    frame = read_releases(fleet.folders.releases, series=MIX_SERIES)
    rows = frame[["window_start", "released_at"]].drop_duplicates()
    waits = rows["released_at"] - rows["window_start"]
    return [float(wait) - WINDOW_S for wait in waits.dt.total_seconds()]
