"""When windows close while the log is away: a fleet's wait, a demo's do not."""

from __future__ import annotations

import pytest

from aggregator.leader.window_closing import CloseRule, LogWatch
from aggregator.protocol.interfaces import BatchKey
from pointillist.play.demo_plan import RETENTION_S, WINDOW_S
from tests.protocol_kit import T0, build_world


@pytest.mark.parametrize(
    ("retention_s", "closes"), [(6 * 3600, [False, False]), (RETENTION_S, [False, True])]
)
def test_window_waits_for_a_log_that_is_away_where_its_retention_leaves_time(
    retention_s: int, closes: list[bool]
) -> None:
    lateness_s = 2
    world = build_world(
        window_s=WINDOW_S, lateness_s=lateness_s, retention_s=retention_s, domain="demo"
    )
    directory, watch = world.directory(), LogWatch()
    watch.tick(T0, 0)
    watch.note_appended([], T0, WINDOW_S)
    watch.tick(T0 + 1, None)
    rule, key = CloseRule(directory, watch), BatchKey(world.task_id, 0, T0)
    due_s = T0 + WINDOW_S + lateness_s
    known = directory.tasks[world.task_id]
    before = (0, frozenset[bytes]())
    assert [rule.closes(known, key, None, before, at) for at in (due_s - 1, due_s)] == closes
