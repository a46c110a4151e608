"""Spark's batches lead to what one process releases, bit for bit, whatever is delivered again."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.leader.leader_events import EpochsArrived
from aggregator.spark.partial_sums import Gathered
from aggregator.spark.spark_shell import drop_strange_checkpoint
from aggregator.spark.sum_store import SumStore
from aggregator.state.state_file import StateUnusable
from tests.protocol_kit import T0, WINDOW_S, World, build_world, open_epochs, true_sum
from tests.spark_kit import Checkpoint, Killed, SparkFleet
from tests.workers.test_workers_release import (
    HOSTS,
    epoch_records,
    give_epochs,
    one_process,
    play_window,
    reports_of,
    send,
)
from tests.workers_kit import OneProcess, what_came

WINDOWS = 3


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def fleet_of(world: World, folder: Path) -> SparkFleet:
    folder.mkdir(exist_ok=True)
    return SparkFleet(world, folder)


def check_same(fleet: SparkFleet, other: OneProcess, windows: int = WINDOWS) -> None:
    assert len(what_came(fleet)) == windows
    assert what_came(fleet) == what_came(other)
    assert [w.rejections for w in fleet.store.written] == [
        w.rejections for w in other.store.written
    ]


@pytest.mark.parametrize("most", [1000, 3])
def test_spark_releases_what_one_process_does(world: World, tmp_path: Path, most: int) -> None:
    fleet, other = fleet_of(world, tmp_path / "s"), one_process(world, tmp_path / "one")
    driver = fleet.drive(most=most)
    for party in (fleet, other):
        give_epochs(party)
    for number in range(WINDOWS):
        play_window(fleet, other, T0 + number * WINDOW_S)
    check_same(fleet, other)
    assert fleet.leader.rejected == other.leader.rejected
    accepted = [host for host in world.hosts if host.number != 1]
    for window, _batch, _entry, vector, n in what_came(fleet):
        assert (vector, n) == (true_sum(world, accepted, window).tolist(), HOSTS - 1)
    if most > HOSTS:  # the Helper refused one host of each sum: its report alone was read again
        assert len(driver.log.read_again) == WINDOWS
    assert sum(fleet.group.committed.values()) == len(fleet.group.in_order)
    assert driver.store.sums == {}


@pytest.mark.parametrize("step", ["before sink commit", "after sink commit"])
@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "store"])
def test_driver_killed_at_a_batch_loses_and_doubles_nothing(
    world: World, tmp_path: Path, step: str, lost: str
) -> None:
    fleet, other = fleet_of(world, tmp_path / "s"), one_process(world, tmp_path / "one")
    checkpoint = Checkpoint()
    fleet.drive(checkpoint, step=step, most=9)
    for party in (fleet, other):
        give_epochs(party)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    with pytest.raises(Killed):
        fleet.quiesce()
    if lost == "store":
        fleet.drivers[-1].fall()
        (tmp_path / "s" / "sums.sqlite").unlink()
    begin_again = checkpoint if lost == "nothing" else Checkpoint("another")
    driver = fleet.drive(begin_again, most=9)
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.in_order)
    fleet.quiesce()
    for party in (fleet, other):
        party.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    for party in (fleet, other):
        party.tick(T0 + WINDOW_S + 30)
    check_same(fleet, other, 1)
    redelivered = (step, lost) == ("after sink commit", "nothing")
    assert ("redelivered" in driver.kill.steps) == redelivered


def test_coordinator_that_fell_is_told_again(world: World, tmp_path: Path) -> None:
    fleet, other = fleet_of(world, tmp_path / "s"), one_process(world, tmp_path / "one")
    fleet.drive(most=5)
    for party in (fleet, other):
        give_epochs(party)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.in_order)
    fleet.quiesce(3)
    fleet.restart_leader()
    fleet.quiesce()
    for party in (fleet, other):
        party.tick(T0 + WINDOW_S + 30)
        party.tick(T0 + WINDOW_S + 31)
    fleet.calls.clear()
    fleet.restart_leader()  # with a frozen batch, whose sums are not there any more
    fleet.quiesce()
    for party in (fleet, other):
        for at_s in (32, 40, 41):
            party.tick(T0 + WINDOW_S + at_s)
            fleet.quiesce()
    check_same(fleet, other, 1)


def test_reports_before_their_epochs_are_taken_when_these_come(
    world: World, tmp_path: Path
) -> None:
    fleet, other = fleet_of(world, tmp_path / "s"), one_process(world, tmp_path / "one")
    checkpoint = Checkpoint()
    fleet.drive(checkpoint)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.in_order)
    fleet.quiesce()
    assert len(fleet.drivers[-1].store.parked) == len(fleet.group.in_order)
    fleet.drive(checkpoint)  # parked reports outlive the process
    fleet.quiesce(2)
    late = epoch_records(fleet)
    for party in (fleet, other):
        party.feed(EpochsArrived(late, fleet.clock()))
    fleet.quiesce()
    assert fleet.drivers[-1].store.parked == []
    for _ in range(2):
        for party in (fleet, other):
            party.tick(T0 + WINDOW_S + 30)
        fleet.quiesce()
    check_same(fleet, other, 1)


def test_duplicates_in_later_batches_are_not_added(world: World, tmp_path: Path) -> None:
    fleet, other = fleet_of(world, tmp_path / "s"), one_process(world, tmp_path / "one")
    driver = fleet.drive(most=HOSTS)
    for party in (fleet, other):
        give_epochs(party)
    raw = reports_of(world, T0)
    send(fleet, [*raw, *raw, *raw], T0 + WINDOW_S + 1)
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.in_order)
    fleet.quiesce(8)
    assert len(driver.checkpoint.plans) >= 3
    for _ in range(2):
        for party in (fleet, other):
            party.tick(T0 + WINDOW_S + 30)
        fleet.quiesce()
    check_same(fleet, other, 1)
    assert fleet.leader.rejected == other.leader.rejected


def test_task_that_spans_two_parts_of_a_partition_is_refused(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "s")
    driver = fleet.drive()
    give_epochs(fleet)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    driver.speak()
    reader = driver.shell._reader
    told = reader.pass_input()
    twice = [Gathered(1, 2), Gathered(1, 4)]
    with pytest.raises(ValueError, match="each partition in one task"):
        reader.take(("query", 0), twice, told)
    assert driver.store.newest("query") == -1


def test_store_has_one_holder_and_takes_a_batch_once(tmp_path: Path) -> None:
    store = SumStore(tmp_path / "sums.sqlite")
    with pytest.raises(StateUnusable, match="no other Spark engine"):
        SumStore(tmp_path / "sums.sqlite")
    store.put([], source=("q", 3), positions={0: 7})
    with pytest.raises(ValueError, match="after 3"):
        store.put([], source=("q", 3))
    store.close()
    again = SumStore(tmp_path / "sums.sqlite")
    assert (again.newest("q"), again.newest("p"), again.positions) == (3, -1, {0: 7})
    again.begin_at({0: 2, 1: 5})
    assert again.positions == {0: 7, 1: 5}
    again.close()


@pytest.mark.parametrize(
    ("done", "planned", "kept"),
    [
        (2, 3, True),  # it fell before Spark was told
        (3, 3, True),
        (3, 4, True),  # it fell while the next batch was read
        (4, 4, False),  # the store came back from a backup
        (1, 2, False),  # the checkpoint did: batch 3 would be planned anew
    ],
)
def test_checkpoint_that_did_not_fall_with_the_store_is_thrown_away(
    tmp_path: Path, done: int, planned: int, kept: bool
) -> None:
    folder, store = checkpoint_and_store(tmp_path, done, planned)
    drop_strange_checkpoint(folder, store)
    assert folder.exists() == kept
    store.close()


@pytest.mark.parametrize("name", ["metadata", "offsets/3", "commits/3"])
def test_checkpoint_that_a_power_cut_left_empty_is_thrown_away(tmp_path: Path, name: str) -> None:
    folder, store = checkpoint_and_store(tmp_path, 3, 3)
    (folder / name).write_text("")
    drop_strange_checkpoint(folder, store)
    assert not folder.exists()
    store.close()


def checkpoint_and_store(tmp_path: Path, done: int, planned: int) -> tuple[Path, SumStore]:
    """A checkpoint of Spark's, and a store that has batch 3."""
    store = SumStore(tmp_path / "sums.sqlite")
    store.put([], source=("q", 3))
    folder = tmp_path / "checkpoint"
    for log, newest in (("commits", done), ("offsets", planned)):
        (folder / log).mkdir(parents=True)
        for number in range(newest + 1):
            (folder / log / str(number)).write_text("v1\n{}")
    (folder / "metadata").write_text('{"id":"q"}')
    return folder, store
