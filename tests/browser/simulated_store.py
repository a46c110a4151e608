"""A folder of releases that the simulator fills: a day and a half of 500 hosts, until now."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from aggregator.protocol.released import SuppressedWindow
from aggregator.releases.store import Store
from pointillist.plan_file import load_plan
from simulator.engine.interface import EngineSettings, Noise, WindowOutcome
from simulator.engine.simulation import Simulation, release_of
from simulator.scenario import load
from wire.catalogue import Catalogue

HOUR_S: Final = 3_600
LONG_S: Final = 21_600

FOLDER: Final = Path(__file__).parent


def fill_simulated(folder: Path, quarters: int = 5) -> Path:
    """Play the fleet for so many whole quarters of a day; give the readers' folder."""
    end_s = int(time.time()) // HOUR_S * HOUR_S
    start_s = end_s // LONG_S * LONG_S - quarters * LONG_S
    scenario = load(FOLDER / "fleet.toml").with_(start_s=start_s, duration_s=end_s - start_s)
    catalogue = Catalogue.load()
    settings = EngineSettings(noise=Noise.SEEDED)
    played = Simulation(scenario, load_plan(FOLDER / "plan.toml"), catalogue, settings)
    with Store(folder / "leader.duckdb", folder / "releases", catalogue) as store:
        for step in played.steps():
            _write(store, step.outcome)
    return folder / "releases"


def _write(store: Store, outcome: WindowOutcome) -> None:
    if outcome.released is not None:
        store.write(release_of(outcome))
        return
    task = outcome.task
    store.suppress(
        SuppressedWindow(
            task.series, 0, outcome.start, task.window_s, task.version, outcome.reason,
            outcome.reporting, task.n_min, float(outcome.start + task.window_s + task.lateness_s),
        )
    )  # fmt: skip
