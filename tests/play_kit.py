"""A demo as its screen sees it: the plan and the tasks are real, what was released is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

from pointillist.play import demo_run
from pointillist.play.demo_fleet import DemoFleet
from pointillist.play.demo_plan import DemoPlan
from pointillist.play.demo_tally import DemoTally
from pointillist.play.stage import Progress
from simulator.cell_view import CellView
from tests.window_kit import CATALOGUE

HOSTS: Final = 1_476
"""Accepted in the newest window."""


def demo_progress(
    folder: Path,
    mix: Sequence[CellView],
    *,
    done: int = 1,
    pages: Mapping[str, str] | None = None,
    refused: Mapping[str, int] | None = None,
) -> Progress:
    """Give what the screen of a demo shows after `done` of 3 windows of 1,501 hosts.

    folder      where the Leader's state is made, with the reports that it refused
    """
    status = folder / "leader" / "state" / "status.json"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(json.dumps({"rejected": refused or {}}))
    plan = DemoPlan(1_500, 3, live=True)
    fleet = SimpleNamespace(
        plan=plan,
        folders=SimpleNamespace(leader=folder / "leader", helper=folder / "helper"),
        tasks=plan.tasks(CATALOGUE, 0, 2, bytes(32), bytes([1]) * 32),
    )
    tally = SimpleNamespace(
        windows=lambda series: list(range(done)) if series == fleet.tasks[0].series else [],
        hosts=lambda *_: HOSTS,
        mix=[list(mix)] * done,
        mean=SimpleNamespace(mean=lambda: list(mix)),
    )
    return demo_run.progress(cast(DemoFleet, fleet), cast(DemoTally, tally), pages or {})
