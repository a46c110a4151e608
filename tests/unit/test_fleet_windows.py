"""The simulator's windows: what a loop that comes late draws is what one in time does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pointillist.demo.demo_plan import WINDOW_S, DemoPlan
from simulator.fleet_windows import FleetShape, FleetWindows
from simulator.workloads import load_workloads
from wire.catalogue import Catalogue
from wire.ids import TaskId
from wire.task import Task

FIRST = 1_700_000_000
SHAPE = FleetShape(0, 20, 8, dropout=0.1, late=0.0, seed=7)


@pytest.fixture
def tasks() -> list[Task]:
    plan = DemoPlan(20, 2, live=False)
    return plan.tasks(Catalogue.load(), FIRST, 2, bytes(32), bytes([1]) * 32)


def closed(tasks: Sequence[Task], looks: Sequence[int]) -> list[tuple[bytes, int, bytes]]:
    """Series, start and rows of each window, in the order in which they are given."""
    windows = FleetWindows(Catalogue.load(), load_workloads(), SHAPE, lambda _truth: None)
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
