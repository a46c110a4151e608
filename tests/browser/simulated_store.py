"""A folder of releases that the simulator fills: a day and a half of 500 hosts, until now."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aggregator.protocol.released import SuppressedWindow
from aggregator.releases.store import Store
from pointillist.plan_file import load_plan
from simulator.engine.interface import EngineSettings, Noise, WindowOutcome
from simulator.engine.simulation import Simulation, release_of
from simulator.scenario import load
from wire.catalogue import Catalogue

HOSTS: Final = 500
HOUR_S: Final = 3_600
LONG_S: Final = 21_600

_PLAN: Final = f"""
format = 1
name = "browser"
scheme = "masked"
epsilon = 100
delta = 1e-6
hosts = {HOSTS}
n_min = 400
t = 50
min_operators = 3
gpus_per_host = 8

[[task]]
series = "hour"
window_s = 3_600
lateness_s = 30
retention_s = 43_200
[task.weights]
kernel_mix = 0.1
kernel_mix_by_model = 0.1
application_mix = 0.1
kernel_duration = 0.3
gpu_temperature = 0.15

[[task]]
series = "quarter_day"
window_s = 21_600
lateness_s = 30
retention_s = 28_800
[task.weights]
applications_seen = 0.05
incidents = 0.1
hardware_faults = 0.1
"""

_SCENARIO: Final = """
format = 1
name = "browser"
about = "what pages show"
seed = 5
hosts = {hosts}
start = {start:%Y-%m-%dT%H:%M:%SZ}
duration_s = {duration_s}
step_s = 3_600
plan = "default"
operators = [4, 3, 2, 1]

[[shape]]
gpu_model = "H100"
gpus = 8
share = 0.7

[[shape]]
gpu_model = "A100"
gpus = 8
share = 0.3

[faults]
lemon_share = 0.3
repair_hours = 4

[upgrades]
every_hours = 12
wave_share = 0.4
wave_minutes = 60
down_minutes = 60
"""


def fill_simulated(folder: Path, quarters: int = 5) -> Path:
    """Play the fleet for so many whole quarters of a day; give the readers' folder."""
    end_s = int(time.time()) // HOUR_S * HOUR_S
    start_s = end_s // LONG_S * LONG_S - quarters * LONG_S
    plan, scenario = folder / "plan.toml", folder / "scenario.toml"
    plan.write_text(_PLAN)
    start = datetime.fromtimestamp(start_s, UTC)
    scenario.write_text(_SCENARIO.format(hosts=HOSTS, start=start, duration_s=end_s - start_s))
    catalogue = Catalogue.load()
    settings = EngineSettings(noise=Noise.SEEDED)
    played = Simulation(load(scenario), load_plan(plan), catalogue, settings)
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
