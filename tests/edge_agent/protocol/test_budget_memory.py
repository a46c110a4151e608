"""What a running host still knows of what it spent: as much as its ledger tells after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from edge_agent.ledger.ledger_records import HostSpending, LedgerView
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
)
from privacy.budget import Entry, may_spend
from tests.agent_world import WEEK_S, MemoryRuntime, World, close_window, new_ledger, started
from wire.fields import TaskId, task_id
from wire.task import Task

LONG_S: Final = 8 * WEEK_S
BEGIN: Final = 2904 * WEEK_S
"""A start of eight-week windows."""

TEN_S: Final = 600
PER_WEEK: Final = WEEK_S // TEN_S


def tens(first_s: int, count: int, weight: int) -> list[Entry]:
    return [
        Entry("ten", start, start + TEN_S, weight, PER_WEEK + 1)
        for start in range(first_s, first_s + count * TEN_S, TEN_S)
    ]


# A heavy week before BEGIN, then four light ones: one entry short of 5 x 1024.
SPENT: Final = (*tens(BEGIN - WEEK_S, PER_WEEK, 900_000), *tens(BEGIN, 4_111, 300_000))
NOW_S: Final = SPENT[-1].end


def ten_task(world: World) -> Task:
    return world.task("ten", window_s=TEN_S, weight=300_000, first=BEGIN - WEEK_S)


def long_task(world: World) -> Task:
    return world.task("long", window_s=LONG_S, weight=600_000, first=BEGIN, last=BEGIN + 9 * LONG_S)


def close_long(runtime: MemoryRuntime, world: World, tid: TaskId, start_s: int) -> list[str]:
    """Close an eight-week window at its end; give why it was withheld."""
    end_s = start_s + LONG_S
    runtime.tell(KeysAnnounced(world.keys(end_s), end_s))
    runtime.tell(EpochDue(end_s))
    before = len(runtime.refused)
    close_window(runtime, world, long_task(world), tid, start_s)
    return [str(refusal.reason) for refusal in runtime.refused[before:]]


def test_running_host_counts_what_a_longer_window_still_meets() -> None:
    """0.9 in the week before, 0.3 in this one and 0.6 / 2: 1.2 in a week that straddles them."""
    world = World(1)
    view = LedgerView((HostSpending(world.host_ids[0], SPENT, 9, ()),))
    tasks = [ten_task(world), long_task(world)]
    runtime, (ten, long) = started(world, tasks, now_s=NOW_S, participant=world.participant(view))
    close_window(runtime, world, tasks[0], ten, NOW_S)
    assert len(runtime.committed) == 1
    long_entry = Entry("long", BEGIN, BEGIN + LONG_S, 600_000, 2)
    assert not may_spend([*SPENT, *tens(NOW_S, 1, 300_000)], long_entry)
    assert close_long(runtime, world, long, BEGIN) == ["budget"]


@pytest.mark.parametrize("restarted", [False, True])
def test_longer_cadence_taken_later_reports_no_window_older_than_the_ledger(
    restarted: bool, tmp_path: Path
) -> None:
    """While ten minutes were the longest window, three weeks of entries were enough."""
    world = World(1)
    ledger = new_ledger(tmp_path, world, BEGIN - WEEK_S)
    runtime, (ten,) = started(
        world,
        [ten_task(world)],
        now_s=BEGIN - WEEK_S,
        participant=world.participant(ledger.view(world.host_ids)),
        ledger=ledger,
    )
    for start in (BEGIN - WEEK_S, BEGIN + 4 * WEEK_S):
        runtime.tell(KeysAnnounced(world.keys(start), start))
        runtime.tell(EpochDue(start + TEN_S))
        close_window(runtime, world, ten_task(world), ten, start)
    assert len(runtime.committed) == 2
    assert [e.start for e in ledger.view(world.host_ids).hosts[0].entries] == [BEGIN + 4 * WEEK_S]
    if restarted:
        runtime = MemoryRuntime(world.participant(ledger.view(world.host_ids)), ledger)
    later = BEGIN + 5 * WEEK_S
    signed = world.sign_task(long_task(world))
    runtime.tell(TaskReceived(signed, later))
    weights = {"ten": 300_000, "long": 600_000}
    runtime.tell(RosterReceived(world.roster(weights, version=2), later))
    tid = task_id(signed[:-128])
    assert close_long(runtime, world, tid, BEGIN) == ["forgotten"]
    assert close_long(runtime, world, tid, BEGIN + LONG_S) == []
    ledger.close()
