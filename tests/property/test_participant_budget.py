"""Whatever tasks, windows and restarts come, no 168 h of a host cost more than its budget."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.ledger_records import HostView, LedgerView
from edge_agent.protocol_events import EpochDue, KeysAnnounced, RosterReceived, TaskReceived
from privacy.budget import Entry, peak
from tests.agent_world import T0, WEEK_S, MemoryShell, World, calibrated, close_window

DAY_S = 86_400
WORLD = World(1)
CADENCES = (DAY_S // 2, DAY_S, WEEK_S)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw windows in time order: (cadence, weight in tenths, step ahead in windows)."""
    step = st.tuples(st.sampled_from(CADENCES), st.integers(1, 10), st.integers(1, 4))
    return draw(st.lists(step, min_size=4, max_size=24))


@settings(max_examples=25, deadline=None)
@given(lives(), st.integers(0, 23))
def test_participant_never_spends_more_than_one_in_any_week(
    life: list[tuple[int, int, int]], restart_at: int
) -> None:
    spent: list[Entry] = []
    shell = MemoryShell(WORLD.participant())
    now_s = T0
    for number, (cadence, tenths, ahead) in enumerate(life):
        if number == restart_at:
            view = LedgerView((HostView(WORLD.host_ids[0], tuple(spent), number * 10, ()),))
            shell = MemoryShell(WORLD.participant(view))
        # Each step is a version of its series with a weight of its own: a Leader that tries it on.
        task = WORLD.task(
            f"c{cadence}", window_s=cadence, weight=tenths * 100_000, version=number + 1,
            lateness_s=30,
        )  # fmt: skip
        task = calibrated(dataclasses.replace(task, last_window=T0 + 200 * WEEK_S))
        start = now_s // cadence * cadence + (ahead - 1) * cadence
        now_s = max(now_s, start + cadence)
        shell.tell(TaskReceived(WORLD.sign_task(task), now_s))
        weights = {f"c{cadence}": tenths * 100_000}
        shell.tell(RosterReceived(WORLD.roster(weights, version=number + 1), now_s))
        shell.tell(KeysAnnounced(WORLD.keys(now_s, 7 * DAY_S), now_s))
        shell.tell(EpochDue(start + cadence))
        for task_id, known in list(shell.participant.tasks.items()):
            if known == task:
                close_window(shell, WORLD, task, task_id, start)
        spent += [e.entry for commit in shell.committed for e in commit.entries]
        shell.committed.clear()
    assert peak(spent) <= 1
    starts: dict[str, list[int]] = {}
    for entry in spent:
        starts.setdefault(entry.series, []).append(entry.start)
    assert all(s == sorted(set(s)) for s in starts.values())
