"""A scenario's windows in their order, kept on disk, and taken up again after a cut."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import AnotherRun, Due, Simulation, Step, schedule
from simulator.scenario import Scenario
from tests.engine_kit import CATALOGUE, plan, scenario

pytestmark = pytest.mark.release

SETTINGS = EngineSettings(noise=Noise.SEEDED, block_hosts=24)


def simulation(
    made: Scenario, folder: Path | None = None, planned: Plan | None = None
) -> Simulation:
    return Simulation(made, planned or plan(), CATALOGUE, SETTINGS, folder)


def two_cadences() -> Plan:
    """Minutes, and indicators of ten minutes."""
    tasks = (
        PlannedTask("minute", 60, 30, 21_600, (PlannedSection("host_cpu", 300_000),)),
        PlannedTask("ten", 600, 30, 21_600, (PlannedSection("applications_seen", 300_000),)),
    )
    return Plan("two", "masked", 2_000_000, 1_000, 100, 80, 10, 3, tasks)


def same(one: Step, other: Step) -> bool:
    a, b = one.outcome, other.outcome
    assert a.released is not None
    assert b.released is not None
    counts = (a.n, a.refused, a.capacity, a.reporting) == (b.n, b.refused, b.capacity, b.reporting)
    return (
        one.due == other.due
        and counts
        and np.array_equal(a.released, b.released)
        and np.array_equal(a.truth, b.truth)
    )


@pytest.mark.parametrize("fidelity", ["masked", "exact", "noise"])
def test_run_that_was_cut_off_goes_on_to_the_same_releases(fidelity: str, tmp_path: Path) -> None:
    made = scenario(40, 5, fidelity=fidelity)
    whole = list(simulation(made).steps())
    first = list(islice(simulation(made, tmp_path).steps(), 2))
    again = list(simulation(made, tmp_path).steps())
    assert [step.kept for step in first] == [False, False]
    # An iterator that is dropped has kept what it gave.
    assert [step.kept for step in again] == [True, True, False, False, False]
    assert all(map(same, whole, again))
    assert all(step.kept for step in simulation(made, tmp_path).steps())


def test_run_refuses_the_checkpoint_of_another(tmp_path: Path) -> None:
    next(simulation(scenario(40), tmp_path).steps())
    with pytest.raises(AnotherRun, match="choose another folder"):
        next(simulation(scenario(40, seed=8), tmp_path).steps())


@pytest.mark.parametrize("fidelity", ["masked", "exact", "noise"])
def test_run_settles_every_cadence_in_the_order_of_ends(fidelity: str) -> None:
    run = simulation(scenario(40, 10, fidelity=fidelity), planned=two_cadences())
    steps = list(run.steps())
    assert [step.due for step in steps] == run.due
    ends = [step.due.end_s for step in steps]
    assert ends == sorted(ends)
    assert [step.due.series for step in steps[-2:]] == ["minute", "ten"]
    last = steps[-1]
    assert last.state.window_s == 600
    assert last.outcome.released is not None
    assert last.outcome.truth.sum() >= np.count_nonzero(last.state.application >= 0) * 0.8


def test_schedule_takes_minutes_in_rows_that_end_with_the_hour() -> None:
    (task,) = simulation(scenario(40, 200)).tasks
    start = task.first_window
    assert start % 3600 == 0
    late = start + 50 * 60
    rows = list(schedule([task], (late, start + 3 * 3600 + 120), 3600))
    assert [(row.start_s - start, row.windows) for row in rows] == [
        (3000, 10),
        (3600, 60),
        (7200, 60),
        (10_800, 2),
    ]
    single = list(schedule([task], (start, start + 180), 0))
    assert single == [Due(start + 60 * n, 60, "minute", start + 60 * n - 60, 1) for n in (1, 2, 3)]


def test_run_beyond_a_day_plays_hours_of_noise() -> None:
    made = scenario(40, 25 * 60, step_s=3600)
    run = simulation(made)
    assert run.fidelity == "noise"
    steps = list(run.steps())
    assert len(steps) == 25
    assert all(step.outcome.windows == 60 for step in steps)
    assert steps[0].outcome.n == 60 * steps[0].outcome.reporting // 60
    short = simulation(made.with_(duration_s=86_400))
    assert short.fidelity == "masked"
