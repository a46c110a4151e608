"""A ledger and open windows of an agent that knew series by name alone, read on as they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from collectors.records.activity import Observation
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import HostEntry, KnownSeries, LedgerView, WindowSpent
from edge_agent.protocol.eligibility import task_weight, window_entry
from edge_agent.protocol.protocol_events import TaskReceived, Withheld
from edge_agent.protocol.task_check import Pins
from edge_agent.windows.window_accumulator import HostClock, TaskWindows
from edge_agent.windows.window_state import DurableAccumulators, WindowState
from tests.agent_world import T0, MemoryRuntime, World, new_ledger
from wire.catalogue import Catalogue
from wire.fields import TaskId, task_id
from wire.rejection import Reason
from wire.task import Task


@pytest.fixture
def world() -> World:
    return World(1)


@pytest.fixture
def other(world: World) -> World:
    """A second Leader of the same host."""
    made = World(1, helper=world.helper)
    made.signing_keys, made.identities = world.signing_keys, world.identities
    world.pins = Pins(frozenset({world.leader.pk, made.leader.pk}), frozenset({world.helper.pk}))
    return made


def as_before(world: World, task: Task, *, kept: bool, id_known: bool = True) -> KnownSeries:
    """What the earlier agent noted of a task that it took."""
    tid = task_id(world.sign_task(task)[:-128]) if kept or id_known else b""
    return KnownSeries(task.series, task.version, task_weight(task), task.window_s, bytes(tid))


def earlier_ledger(folder: Path, world: World, task: Task, *, kept: bool = True) -> Ledger:
    ledger = new_ledger(folder, world)
    known = as_before(world, task, kept=kept)
    signed = {known.task_id: world.sign_task(task)} if kept else {}
    ledger.remember_series([known], signed)
    entry = dataclasses.replace(window_entry(task, T0), series=task.series)
    ledger.commit_sealed([HostEntry(world.host_ids[0], entry)], [], T0 + 60)
    return ledger


def answers(world: World, view: LedgerView, *tasks: tuple[World, Task]) -> list[str]:
    """Tell a host that has this ledger of tasks; say why each is refused."""
    runtime = MemoryRuntime(world.participant(view))
    found = []
    for signer, task in tasks:
        runtime.refused.clear()
        runtime.tell(TaskReceived(signer.sign_task(task), T0))
        found.append(runtime.refused[0].reason.value if runtime.refused else "taken")
    return found


def test_kept_task_tells_whose_a_series_is(world: World, other: World, tmp_path: Path) -> None:
    task = world.task(version=3)
    ledger = earlier_ledger(tmp_path, world, task)
    for view in (ledger.view(world.host_ids), read_view(tmp_path / "ledger.sqlite")):
        assert set(view.series) == {task.series_key}
        others = other.task(weight=100_000, window_s=20)
        assert answers(
            world,
            view,
            (world, dataclasses.replace(task, version=2)),
            (world, task),
            (other, others),
        ) == [Reason.TASK_SUPERSEDED, "taken", "taken"]


def test_newer_version_counts_whichever_agent_noted_it(world: World, tmp_path: Path) -> None:
    """An earlier agent went on with this one's ledger, and then this one again."""
    task = world.task(version=3)
    newer = dataclasses.replace(task, version=4)
    ledger = earlier_ledger(tmp_path, world, newer)
    by_key = dataclasses.replace(as_before(world, task, kept=True), series=task.series_key)
    ledger.remember_series([by_key])
    view = ledger.view(world.host_ids)
    assert [(key, known.version) for key, known in view.series.items()] == [(task.series_key, 4)]
    assert answers(world, view, (world, task), (world, newer)) == [Reason.TASK_SUPERSEDED, "taken"]


def test_spent_window_counts_for_every_leader(world: World, other: World, tmp_path: Path) -> None:
    task, others = world.task(), other.task(weight=300_000)
    ledger = earlier_ledger(tmp_path, world, task)
    (host,) = world.host_ids
    for made in (task, others):
        with pytest.raises(WindowSpent):
            ledger.commit_sealed([HostEntry(host, window_entry(made, T0))], [], T0 + 61)
        ledger.commit_sealed([HostEntry(host, window_entry(made, T0 + 60))], [], T0 + 120)
    (spent,) = ledger.view(world.host_ids).hosts
    assert len(spent.entries) == 3


def test_series_of_an_unknown_leader_binds_every_leader(
    world: World, other: World, tmp_path: Path
) -> None:
    task = world.task(version=3)
    view = earlier_ledger(tmp_path, world, task, kept=False).view(world.host_ids)
    others = other.task(weight=100_000, version=3)
    later = dataclasses.replace(others, version=4)
    shorter = other.task(weight=100_000, version=4, window_s=20)
    older = dataclasses.replace(task, version=2)
    told = [(world, older), (other, shorter), (other, others), (other, later), (world, task)]
    superseded = Reason.TASK_SUPERSEDED
    wanted = [superseded, Reason.FIELD, superseded, "taken", "taken"]
    assert answers(world, view, *told) == wanted


def test_recovered_series_of_an_unknown_leader_is_the_first_ones(
    world: World, other: World
) -> None:
    """Until its two weeks are over a recovered ledger gives one Leader what one had."""
    task, others = world.task(weight=500_000), other.task(weight=500_000)
    known = as_before(world, task, kept=False, id_known=False)
    empty = world.empty_view()
    frozen = dataclasses.replace(empty, series={"minute": known}, freeze_until_s=T0 + 1)
    told = [(world, task), (other, others)]
    assert answers(world, frozen, *told) == ["taken", Withheld.RECOVERING]
    by_key = dataclasses.replace(known, series=task.series_key)
    again = dataclasses.replace(frozen, series={"minute": known, task.series_key: by_key})
    assert answers(world, again, *reversed(told)) == [Withheld.RECOVERING, "taken"]


def test_recovery_keeps_whose_a_series_is(world: World, tmp_path: Path) -> None:
    """The lost ledger's files are read with its tasks; the new one has no bare names."""
    task = world.task()
    earlier_ledger(tmp_path, world, task).close()
    recovered = Ledger.recover(
        tmp_path / "ledger.sqlite", tmp_path / "host.key.fence", hosts=world.host_ids,
        binding=b"machine", now_s=T0 + 3600, signed_time_s=0, known=[],
    )  # fmt: skip
    view = recovered.view(world.host_ids)
    assert set(view.series) == {task.series_key}
    (spent,) = view.hosts
    assert [entry.series for entry in spent.entries] == ["minute"]


def test_open_window_of_an_earlier_agent_goes_on(
    world: World, other: World, tmp_path: Path
) -> None:
    """Under the new name, and is erased under the old one when it is sealed."""
    weights = {"host_cpu": 100_000}
    tasks = [
        w.catalogue_task(weights, window_s=86_400, windows=9, series="day", n_max=100, n_min=80)
        for w in (world, other)
    ]
    path = tmp_path / "open.sqlite"
    with DurableAccumulators(path) as store:
        state = WindowState(coin=0)
        state.observe("host_cpu", "user", 400_000)
        store.save("day", T0, state, T0 + 90_000)
    store = DurableAccumulators(path)
    windows = TaskWindows(Catalogue.load(), (), store, lambda: HostClock(T0 * 10**9))
    for number, task in enumerate(tasks):
        windows.open_task(TaskId(bytes([number]) * 32), task, T0 + 3600)
    windows.add(Observation("host_cpu", "user", 600_000, 3600 * 10**9))
    windows.persist()
    assert all(store.windows(task.series_key) == [T0] for task in tasks)
    closed = list(windows.close_ended(T0 + 86_400))
    assert [int(window.rows.max()) for window in closed] == [500_000, 500_000]
    assert store.windows("day") == []
