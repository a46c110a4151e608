"""Whatever tasks, windows and restarts come, no 168 h of a host cost more than its budget."""

from __future__ import annotations

import dataclasses

from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_agent.ledger.ledger_records import HostSpending, LedgerView
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
)
from privacy.budget import Entry, peak
from tests.agent_world import T0, WEEK_S, MemoryRuntime, World, calibrated, close_window
from wire.task import Task

DAY_S = 86_400
WORLD = World(1)
CADENCES = (DAY_S // 2, DAY_S, WEEK_S)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw phases in time order: (the series that has most of the weight, its windows, pause)."""
    phase = st.tuples(st.sampled_from(CADENCES), st.integers(1, 9), st.integers(0, 2))
    return draw(st.lists(phase, min_size=2, max_size=6))


def tell_versions(runtime: MemoryRuntime, heavy: int, version: int, now_s: int) -> dict[int, Task]:
    """Sign a new version of every series: one has weight 0.8, the others 0.1 each."""
    tasks = {}
    for cadence in sorted(CADENCES, key=lambda c: c == heavy):
        weight = 800_000 if cadence == heavy else 100_000
        task = WORLD.task(
            f"c{cadence}", window_s=cadence, weight=weight, version=version, lateness_s=30
        )
        tasks[cadence] = calibrated(dataclasses.replace(task, last_window=T0 + 200 * WEEK_S))
        runtime.tell(TaskReceived(WORLD.sign_task(tasks[cadence]), now_s))
    weights = {t.series: t.sections[0].weight_millionths for t in tasks.values()}
    runtime.tell(RosterReceived(WORLD.roster(weights, version=version), now_s))
    return tasks


@settings(max_examples=30, deadline=None)
@given(lives(), st.integers(0, 5))
@example([(WEEK_S, 2, 0), (DAY_S, 8, 0), (DAY_S // 2, 9, 0)], 1)
def test_participant_never_spends_more_than_one_in_any_week(
    life: list[tuple[int, int, int]], restart_at: int
) -> None:
    """Weights move from series to series as no plan may move them: the ledger alone holds."""
    spent: list[Entry] = []
    runtime = MemoryRuntime(WORLD.participant())
    now_s = T0
    for number, (cadence, windows, pause) in enumerate(life):
        if number == restart_at:
            view = LedgerView((HostSpending(WORLD.host_ids[0], tuple(spent), number * 100, ()),))
            runtime = MemoryRuntime(WORLD.participant(view))
        task = tell_versions(runtime, cadence, number + 1, now_s)[cadence]
        now_s += pause * DAY_S
        start = now_s // cadence * cadence
        for begin in range(start, start + windows * cadence, cadence):
            now_s = begin + cadence
            runtime.tell(KeysAnnounced(WORLD.keys(now_s, DAY_S), now_s))
            runtime.tell(EpochDue(now_s))
            tid = next((i for i, known in runtime.participant.tasks.items() if known == task), None)
            if tid is not None:
                close_window(runtime, WORLD, task, tid, begin)
        spent += [e.entry for commit in runtime.committed for e in commit.entries]
        runtime.committed.clear()
    assert spent
    assert peak(spent) <= 1
    starts: dict[str, list[int]] = {}
    for entry in spent:
        starts.setdefault(entry.series, []).append(entry.start)
    assert all(s == sorted(set(s)) for s in starts.values())
