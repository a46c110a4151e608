"""The simulator's windows: what a loop that comes late draws is what one in time does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pointillist.demo.demo_fleet import SCENARIO
from pointillist.demo.demo_plan import WINDOW_S, DemoPlan
from simulator.engine.blocks import Span
from simulator.fleet import SteadyFleet
from simulator.scenario import Dropout, load
from simulator.simulated_windows import SimulatedWindows
from wire.catalogue import Catalogue
from wire.ids import TaskId
from wire.task import Task

FIRST = 1_700_000_000
SHAPE = load(SCENARIO).with_(hosts=20, seed=7, dropout=Dropout(share=0.1, late_share=0.0))


@pytest.fixture
def tasks() -> list[Task]:
    plan = DemoPlan(20, 2, live=False)
    return plan.tasks(Catalogue.load(), FIRST, 2, bytes(32), bytes([1]) * 32)


def closed(tasks: Sequence[Task], looks: Sequence[int]) -> list[tuple[bytes, int, bytes]]:
    """Series, start and rows of each window, in the order in which they are given."""
    catalogue = Catalogue.load()
    fleet, hosts = SteadyFleet(SHAPE, catalogue), (Span(0, 0, 20),)
    windows = SimulatedWindows(fleet, catalogue, hosts, lambda _truth: None, block_hosts=20)
    for task in tasks:
        windows.open_task(TaskId(task.series.encode()), task, FIRST - 1)
    found = [one for now_s in looks for one in windows.close_ended(now_s)]
    assert windows.next_end_s() is None
    return [(one.task_id, one.start_s, one.rows.tobytes()) for one in found]


@pytest.mark.parametrize(
    ("windows", "of_events"), [(24, [21, 22, 23]), (3, [0, 1, 2]), (2, [0, 0, 1]), (1, [0, 0, 0])]
)
def test_event_sections_have_a_window_each_where_there_are_enough(
    windows: int, of_events: list[int]
) -> None:
    plan = DemoPlan(20, windows, live=False)
    mix, *events = plan.tasks(Catalogue.load(), FIRST, 2, bytes(32), bytes([1]) * 32)
    assert mix.windows == windows
    assert [(task.first_window - FIRST) // WINDOW_S for task in events] == of_events
    assert {task.windows for task in events} == {1}


def test_windows_come_in_one_order_however_late_they_are_asked_for(tasks: list[Task]) -> None:
    in_time = closed(tasks, [FIRST + WINDOW_S, FIRST + 2 * WINDOW_S])
    assert [start for _, start, _ in in_time] == [FIRST] * 3 + [FIRST + WINDOW_S] * 2
    assert closed(tasks, [FIRST + 9 * WINDOW_S]) == in_time
    assert closed(tasks[::-1], [FIRST + 9 * WINDOW_S]) == in_time
