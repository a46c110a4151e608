"""The simulator's windows: what a loop that comes late draws is what one in time does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pointillist.play.demo_fleet import SCENARIO
from pointillist.play.demo_plan import WINDOW_S, DemoPlan
from simulator.engine.blocks import Span
from simulator.fleet.fleet_model import SteadyFleet
from simulator.fleet.hosts import IDLE
from simulator.scenario import Dropout, load
from simulator.slices import SimulatedWindows, WindowTruth
from wire.catalogue import Catalogue
from wire.fields import TaskId
from wire.task import Task

CATALOGUE = Catalogue.load()
FIRST = 1_700_000_000
SHAPE = load(SCENARIO).with_(hosts=20, seed=7, dropout=Dropout(share=0.1, late_share=0.0))


@pytest.fixture
def tasks() -> list[Task]:
    plan = DemoPlan(20, 2, live=False)
    return plan.tasks(CATALOGUE, FIRST, 2, bytes(32), bytes([1]) * 32)


def closed(tasks: Sequence[Task], looks: Sequence[int]) -> list[tuple[bytes, int, bytes]]:
    """Series, start and rows of each window, in the order in which they are given."""
    fleet, hosts = SteadyFleet(SHAPE, CATALOGUE), (Span(0, 0, 20),)
    windows = SimulatedWindows(fleet, CATALOGUE, hosts, lambda _truth: None, block_hosts=20)
    for task in tasks:
        windows.open_task(TaskId(task.series.encode()), task, FIRST - 1)
    found = [one for now_s in looks for one in windows.close_ended(now_s)]
    assert windows.next_end_s() is None
    return [(one.task_id, one.start_s, one.rows.tobytes()) for one in found]


@pytest.mark.parametrize(
    ("windows", "alone"), [(24, [1, 2, 3, 4]), (3, [1, 2, 2, 2]), (1, [0, 0, 0, 0])]
)
def test_series_of_one_window_have_the_first_ones_after_the_mix_began(
    windows: int, alone: list[int]
) -> None:
    plan = DemoPlan(20, windows, live=False)
    mix, *others = plan.tasks(CATALOGUE, FIRST, 2, bytes(32), bytes([1]) * 32)
    assert mix.windows == windows
    assert [(task.first_window - FIRST) // WINDOW_S for task in others] == alone
    assert {task.windows for task in others} == {1}


def test_windows_come_in_one_order_however_late_they_are_asked_for(tasks: list[Task]) -> None:
    in_time = closed(tasks, [FIRST + WINDOW_S, FIRST + 2 * WINDOW_S])
    assert [start for _, start, _ in in_time] == [FIRST] + [FIRST + WINDOW_S] * 5
    assert closed(tasks, [FIRST + 9 * WINDOW_S]) == in_time
    assert closed(tasks[::-1], [FIRST + 9 * WINDOW_S]) == in_time


def test_steady_fleet_is_its_scenarios() -> None:
    """Every busy host runs one recording, on the model it was recorded on, in every window."""
    scenario = load(SCENARIO).with_(hosts=2_000, seed=3)
    fleet = SteadyFleet(scenario, CATALOGUE)
    states = [fleet.at(scenario.start_s + number * WINDOW_S, WINDOW_S) for number in range(2)]
    first, second = states
    assert (first.application == second.application).all()
    assert (first.present != second.present).any()
    idle = first.application == IDLE
    assert abs((1 - idle.mean()) - scenario.load.busy_share) < 0.02
    run = {fleet.applications[place] for place in first.application[~idle]}
    assert {one.group for one in run} == set(scenario.applications.shares)
    assert all(one.is_recording for one in run)
    models = CATALOGUE.classes("gpu_model")
    for host in np.flatnonzero(~idle)[:50]:
        recorded = fleet.applications[first.application[host]].workload.gpu_model
        assert models[fleet.inventory.gpu_model[host]] == recorded
    for state in states:
        late = (state.present & state.late).mean()
        assert 0.97 < state.present.mean() < 0.99
        assert late < 0.01
        assert 0.2 < (state.incidents > 0).mean() < 0.7


def test_windows_hold_late_reports_back_only_where_the_network_does() -> None:
    scenario = SHAPE.with_(dropout=Dropout(share=0.1, late_share=0.5))
    task = DemoPlan(20, 1, live=False).tasks(CATALOGUE, FIRST, 2, bytes(32), bytes([1]) * 32)[0]
    fleet = SteadyFleet(scenario, CATALOGUE)
    state = fleet.at(scenario.start_s, WINDOW_S)
    for sends_late, sent in ((True, state.present), (False, state.reporting)):
        truths: list[WindowTruth] = []
        windows = SimulatedWindows(
            fleet, CATALOGUE, (Span(0, 0, 20),), truths.append, block_hosts=20, tasks=1,
            sends_late=sends_late,
        )  # fmt: skip
        windows.open_task(TaskId(b"mix"), task, FIRST - 1)
        assert not windows.over(FIRST)
        (closed,) = windows.close_ended(FIRST + WINDOW_S)
        assert (closed.present == sent).all()
        (truth,) = truths
        assert truth.hosts == state.reporting.sum() < state.present.sum()
        assert (truth.sums == closed.rows[state.reporting].sum(axis=0)).all()
        assert windows.over(FIRST + WINDOW_S)
        held = windows.late_hosts.get(FIRST)
        assert (held is not None) == sends_late
        if held is not None:
            late = np.flatnonzero(state.present & state.late)
            assert held.hosts == set(late.tolist())
            assert held.closes_s == FIRST + WINDOW_S + task.lateness_s
