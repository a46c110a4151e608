"""Two pinned Leaders whose series have one name: neither takes the other's place, and both spend
one budget.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collectors.records.activity import Observation
from edge_agent.ledger.ledger import Ledger
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
    WindowClosed,
    Withheld,
)
from edge_agent.protocol.task_check import Pins
from edge_agent.windows.window_accumulator import HostClock, TaskWindows
from edge_agent.windows.window_state import DurableAccumulators
from privacy.budget import spent_at
from privacy.noise_table import LiveSampler
from tests.agent_world import T0, WEEK_S, MemoryRuntime, World, new_ledger
from wire.catalogue import Catalogue
from wire.fields import TaskId, task_id
from wire.task import Task

NEVER_AGAIN = 2**31 - 1
"""The highest version that a task can have."""


@dataclasses.dataclass
class Fleets:
    """One host that two fleets have on their rosters, and whose agent pins both Leaders."""

    fleet: World
    other: World

    def runtime(self, ledger: Ledger | None = None, now_s: int = T0) -> MemoryRuntime:
        view = None if ledger is None else ledger.view(self.fleet.host_ids)
        runtime = MemoryRuntime(self.fleet.participant(view), ledger)
        for world in (self.fleet, self.other):
            runtime.tell(KeysAnnounced(world.keys(), now_s))
        return runtime


@pytest.fixture
def fleets() -> Fleets:
    fleet, other = World(1), World(1)
    other.signing_keys, other.identities = fleet.signing_keys, fleet.identities
    worlds = (fleet, other)
    fleet.pins = Pins(
        frozenset(world.leader.pk for world in worlds),
        frozenset(world.helper.pk for world in worlds),
    )
    return Fleets(*worlds)


def give(runtime: MemoryRuntime, world: World, task: Task, now_s: int = T0) -> TaskId:
    signed = world.sign_task(task)
    runtime.tell(TaskReceived(signed, now_s))
    return task_id(signed[:-128])


def served(runtime: MemoryRuntime) -> set[tuple[bytes, int]]:
    return {(task.leader_pk, task.version) for task in runtime.participant.tasks.values()}


def close(runtime: MemoryRuntime, task: Task, tid: TaskId, start: int) -> None:
    rows = np.zeros((1, task.d - 2), dtype=np.int64)
    end_s = start + task.window_s
    runtime.tell(WindowClosed(tid, start, rows, np.ones(1, dtype=np.bool_), end_s))


@pytest.mark.parametrize("version", [1, 2, NEVER_AGAIN])
def test_another_leader_neither_replaces_nor_blocks_a_series(fleets: Fleets, version: int) -> None:
    runtime = fleets.runtime()
    own = fleets.fleet.task(weight=500_000)
    others = fleets.other.task(weight=400_000, version=version)
    give(runtime, fleets.fleet, own)
    give(runtime, fleets.other, others)
    assert served(runtime) == {(own.leader_pk, 1), (others.leader_pk, version)}
    give(runtime, fleets.fleet, dataclasses.replace(own, version=2))
    assert served(runtime) == {(own.leader_pk, 2), (others.leader_pk, version)}
    assert runtime.refused == []


def test_both_leaders_windows_are_reported_once_and_count_into_one_week(
    fleets: Fleets, tmp_path: Path
) -> None:
    own, others = fleets.fleet.task(weight=500_000), fleets.other.task(weight=400_000)
    tasks = ((fleets.fleet, own), (fleets.other, others))
    ledger = new_ledger(tmp_path, fleets.fleet)
    for _ in ("a first process", "and one after it"):
        runtime, ids = fleets.runtime(ledger), []
        for world, task in tasks:
            ids.append(give(runtime, world, task))
            weight = task.sections[0].weight_millionths
            runtime.tell(RosterReceived(world.roster({"minute": weight}), T0))
        runtime.tell(EpochDue(T0))
        for (_, task), tid in zip(tasks, ids, strict=True):
            close(runtime, task, tid, T0)
        (host,) = ledger.view(fleets.fleet.host_ids).hosts
        assert sorted(entry.weight_millionths for entry in host.entries) == [400_000, 500_000]
        assert spent_at(host.entries, T0) == sum(entry.cost for entry in host.entries)
    assert [refused.reason for refused in runtime.refused] == [Withheld.WINDOW_SPENT] * 2


def test_second_leader_gets_no_weight_that_the_fleet_has(fleets: Fleets) -> None:
    runtime = fleets.runtime()
    own = fleets.fleet.task(weight=700_000)
    give(runtime, fleets.fleet, own)
    give(runtime, fleets.other, fleets.other.task(weight=300_001, version=2))
    assert served(runtime) == {(own.leader_pk, 1)}
    assert [refused.reason.value for refused in runtime.refused] == ["weight"]


def test_next_leader_gets_the_budget_once_the_old_one_is_unpinned(
    fleets: Fleets, tmp_path: Path
) -> None:
    """A Leader's new identity: what the old one's tasks spent stays spent."""
    old, new = fleets.fleet.task(), fleets.other.task(first=T0 + WEEK_S)
    ledger = new_ledger(tmp_path, fleets.fleet)
    before = fleets.runtime(ledger)
    tid = give(before, fleets.fleet, old)
    before.tell(RosterReceived(fleets.fleet.roster({"minute": 600_000}), T0))
    before.tell(EpochDue(T0))
    close(before, old, tid, T0)
    give(before, fleets.other, new)
    assert served(before) == {(old.leader_pk, 1)}
    pinned = fleets.fleet.pins
    fleets.fleet.pins = dataclasses.replace(pinned, leaders=frozenset({new.leader_pk}))
    after = fleets.runtime(ledger)
    give(after, fleets.fleet, old)
    give(after, fleets.other, new)
    assert served(after) == {(new.leader_pk, 1)}
    (host,) = ledger.view(fleets.fleet.host_ids).hosts
    assert [entry.weight_millionths for entry in host.entries] == [600_000]


def test_trial_leaves_its_names_to_the_fleet(fleets: Fleets, tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, fleets.fleet)
    give(fleets.runtime(ledger), fleets.other, fleets.other.task(window_s=20, weight=100_000))
    after = fleets.runtime(ledger)
    give(after, fleets.fleet, fleets.fleet.task())
    assert after.refused == []
    assert served(after) == {(fleets.fleet.leader.pk, 1)}


def test_both_leaders_days_are_measured_whole_over_a_restart(
    fleets: Fleets, tmp_path: Path
) -> None:
    """On disk, too, an open window is one Leader's alone."""
    weights = {"host_cpu": 100_000}
    tasks = [
        world.catalogue_task(weights, window_s=86_400, windows=9, series="day", n_max=100, n_min=80)
        for world in (fleets.fleet, fleets.other)
    ]

    def windows() -> TaskWindows:
        store = DurableAccumulators(tmp_path / "open.sqlite")
        made = TaskWindows(Catalogue.load(), (), store, lambda: HostClock(T0 * 10**9))
        for number, task in enumerate(tasks):
            made.open_task(TaskId(bytes([number]) * 32), task, T0)
        return made

    before = windows()
    before.add(Observation("host_cpu", "user", 500_000, 10**9))
    before.persist()
    after = windows()
    after.add(Observation("host_cpu", "user", 500_000, 2 * 10**9))
    closed = list(after.close_ended(T0 + 86_400))
    assert sorted((window.task_id[0], window.start_s) for window in closed) == [(0, T0), (1, T0)]
    rows = {window.rows.tobytes() for window in closed}
    assert len(rows) == 1
    assert any(rows.pop())


def test_second_leaders_cadence_does_not_hold_the_fleets_roster_up(fleets: Fleets) -> None:
    """An increase waits for the longest window of the roster's own series."""
    rules = fleets.fleet.rules(domain="live")
    participant = fleets.fleet.participant(sampler=LiveSampler(os.urandom), rules=rules)
    runtime = MemoryRuntime(participant)
    last = T0 + 80 * WEEK_S
    series = "eight_weeks"
    long = fleets.other.task(series, window_s=8 * WEEK_S, weight=1_000, last=last, domain="fleet")
    give(runtime, fleets.other, long)
    assert served(runtime) == {(long.leader_pk, 1)}
    for version, weights in enumerate(rosters_that_move_weight(), start=1):
        signed = fleets.fleet.roster(
            weights, version=version, effective_from=T0 + (version - 1) * WEEK_S
        )
        runtime.tell(RosterReceived(signed, T0))
    assert runtime.refused == []


def rosters_that_move_weight() -> Iterator[dict[str, int]]:
    yield {"minute": 600_000, "hour": 400_000}
    yield {"minute": 500_000, "hour": 400_000}
    yield {"minute": 500_000, "hour": 400_000, "other": 1}
    yield {"minute": 500_000, "hour": 500_000 - 1, "other": 1}
