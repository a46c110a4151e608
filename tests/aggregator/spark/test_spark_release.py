"""Spark's batches lead to what one process releases, bit for bit, whatever is delivered again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from aggregator.leader.admission import PARKED_PER_HOST
from aggregator.leader.leader_events import EpochsArrived, Tick
from aggregator.protocol.interfaces import (
    BatchReply,
    HelperStatus,
    HelperUnavailable,
    ReleaseReply,
)
from aggregator.spark.partial_sums import Gathered
from aggregator.spark.spark_runtime import drop_strange_checkpoint
from aggregator.spark.sum_store import SumStore
from aggregator.state.state_file import StateUnusable
from tests.fault_cases import STEPS
from tests.integration.test_local_scheme import local_epoch, local_report, local_world
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    World,
    build_world,
    open_epochs,
    true_sum,
    vector_of,
)
from tests.reader_kit import (
    HOSTS,
    PARTITIONS,
    OneProcess,
    after,
    epoch_records,
    give_epochs,
    honest_bytes,
    reports_of,
    what_came,
)
from tests.spark_kit import Checkpoint, Killed, SparkFleet

WINDOWS = 3


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def play_window(fleet: SparkFleet, other: OneProcess, window: int) -> None:
    raw, before = reports_of(fleet.world, window), len(fleet.group.records)
    fleet.publish(raw, after(window))
    other.clock.now_s = after(window)
    other.read(fleet.group.records[before:])
    fleet.quiesce()
    for _ in range(2):  # releases are countersigned one tick later
        for party in (fleet, other):
            party.tick(window + WINDOW_S + 30)
        fleet.quiesce()


def check_same(fleet: SparkFleet, other: OneProcess, windows: int = WINDOWS) -> None:
    assert len(what_came(fleet)) == windows
    assert what_came(fleet) == what_came(other)
    assert [w.rejections for w in fleet.store.written] == [
        w.rejections for w in other.store.written
    ]


@pytest.mark.parametrize("most", [1000, 3])
def test_spark_releases_what_one_process_does(world: World, tmp_path: Path, most: int) -> None:
    fleet, other = SparkFleet(world, tmp_path / "s"), OneProcess(world, tmp_path / "one")
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
    assert sum(fleet.group.committed.values()) == len(fleet.group.records)
    assert driver.store.sums == {}


@pytest.mark.fault_case("driver-killed")
@pytest.mark.parametrize("step", STEPS["driver"])
@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "store"])
def test_driver_killed_at_a_batch_loses_and_doubles_nothing(
    world: World, tmp_path: Path, step: str, lost: str
) -> None:
    fleet, other = SparkFleet(world, tmp_path / "s"), OneProcess(world, tmp_path / "one")
    checkpoint = Checkpoint()
    fleet.drive(checkpoint, step=step, most=9)
    for party in (fleet, other):
        give_epochs(party)
    fleet.publish(reports_of(world, T0), after(T0))
    with pytest.raises(Killed):
        fleet.quiesce()
    if lost == "store":
        fleet.drivers[-1].fall()
        (tmp_path / "s" / "sums.sqlite").unlink()
    begin_again = checkpoint if lost == "nothing" else Checkpoint("another")
    driver = fleet.drive(begin_again, most=9)
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.records)
    fleet.quiesce()
    for party in (fleet, other):
        party.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    for party in (fleet, other):
        party.tick(T0 + WINDOW_S + 30)
    check_same(fleet, other, 1)
    redelivered = (step, lost) == ("after sink commit", "nothing")
    assert ("redelivered" in driver.kill.steps) == redelivered


def test_leader_that_fell_is_told_again(world: World, tmp_path: Path) -> None:
    fleet, other = SparkFleet(world, tmp_path / "s"), OneProcess(world, tmp_path / "one")
    fleet.drive(most=5)
    for party in (fleet, other):
        give_epochs(party)
    fleet.publish(reports_of(world, T0), after(T0))
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.records)
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
    fleet, other = SparkFleet(world, tmp_path / "s"), OneProcess(world, tmp_path / "one")
    checkpoint = Checkpoint()
    fleet.drive(checkpoint)
    fleet.publish(reports_of(world, T0), after(T0))
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.records)
    fleet.quiesce()
    assert len(fleet.drivers[-1].store.parked) == len(fleet.group.records)
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
    fleet, other = SparkFleet(world, tmp_path / "s"), OneProcess(world, tmp_path / "one")
    driver = fleet.drive(most=HOSTS)
    for party in (fleet, other):
        give_epochs(party)
    raw = reports_of(world, T0)
    fleet.publish([*raw, *raw, *raw], after(T0))
    other.clock.now_s = fleet.clock.now_s
    other.read(fleet.group.records)
    fleet.quiesce(8)
    assert len(driver.checkpoint.plans) >= 3
    for _ in range(2):
        for party in (fleet, other):
            party.tick(T0 + WINDOW_S + 30)
        fleet.quiesce()
    check_same(fleet, other, 1)
    assert fleet.leader.rejected == other.leader.rejected


def test_task_that_spans_two_parts_of_a_partition_is_refused(world: World, tmp_path: Path) -> None:
    fleet = SparkFleet(world, tmp_path / "s")
    driver = fleet.drive()
    give_epochs(fleet)
    fleet.publish(reports_of(world, T0), after(T0))
    driver.speak()
    reader = driver.shell._state
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


def test_commit_stays_at_the_oldest_window_that_has_not_ended(world: World, tmp_path: Path) -> None:
    fleet = SparkFleet(world, tmp_path / "s")
    fleet.drive()
    give_epochs(fleet)
    fleet.publish(reports_of(world, T0), after(T0))
    fleet.quiesce()
    assert set(fleet.group.committed.values()) <= {0}
    fleet.close_slowly(T0 + WINDOW_S + 30)
    fleet.quiesce()
    assert len(what_came(fleet)) == 1
    ends = {part: at for part, at in enumerate(fleet.group.next) if at}
    assert {slot[1]: at for slot, at in fleet.group.committed.items() if at} == ends


def test_driver_that_is_silent_leaves_its_partitions_unread(world: World, tmp_path: Path) -> None:
    fleet = SparkFleet(world, tmp_path / "s")
    fleet.drive()
    fleet.quiesce()
    now_s = fleet.clock()
    assert (fleet.reader.status(now_s), fleet.reader.lag(0, now_s)) == ({"partitions_unread": 0}, 0)
    assert fleet.reader.status(now_s + 3) == {"partitions_unread": PARTITIONS}
    assert fleet.reader.lag(0, now_s + 3) == 1
    assert fleet.reader.lag(None, now_s) is None


def test_more_unsettled_windows_than_parked_places_outlive_a_restart(
    world: World, tmp_path: Path
) -> None:
    """All of them are named again before the Leader has given an epoch."""
    fleet = SparkFleet(world, tmp_path / "s")
    fleet.drive()
    give_epochs(fleet)
    helper, fleet.port = fleet.port, AwayHelper()
    windows = [T0 + number * WINDOW_S for number in range(PARKED_PER_HOST + 2)]
    for window in windows:
        fleet.publish(honest_bytes(world, window), after(window))
        fleet.quiesce(3)
        fleet.tick(window + WINDOW_S + 30)
    assert len(fleet.leader.chains.closed) == len(windows)
    fleet.restart_leader()
    fleet.quiesce()
    fleet.port = helper
    for step in range(len(windows) + 2):
        fleet.tick(windows[-1] + 2 * WINDOW_S + 60 * step)
        fleet.quiesce(3)
    assert [window for window, *_ in what_came(fleet)] == windows


def test_local_scheme_is_released_without_a_helper(tmp_path: Path) -> None:
    world = local_world()
    fleet = SparkFleet(world, tmp_path)
    fleet.drive()
    for host in world.hosts:
        local_epoch(world, host)
    give_epochs(fleet)
    vectors = [vector_of(host, T0, world.task.d) for host in world.hosts]
    vectors[0][3] += 2**40  # int64: nothing wraps at 2^32
    raw = [local_report(world, h, v).encode() for h, v in zip(world.hosts, vectors, strict=True)]
    fleet.publish(raw, after(T0))
    fleet.quiesce()
    fleet.close_slowly(T0 + WINDOW_S + 30)
    (released,) = fleet.store.written
    assert released.vector.tolist() == sum(vectors).tolist()  # type: ignore[union-attr]


class AwayHelper:
    """A Helper that cannot be reached."""

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        raise HelperUnavailable("away")

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        raise HelperUnavailable("away")

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        raise HelperUnavailable("away")

    def status(self) -> HelperStatus:
        raise HelperUnavailable("away")


def test_share_that_comes_while_reports_are_read_again_is_asked_for_anew(
    world: World, tmp_path: Path
) -> None:
    """The Helper answered an earlier life of the Leader: its batch's hosts have no place yet."""
    fleet = SparkFleet(world, tmp_path / "s")
    fleet.drive()
    give_epochs(fleet)
    fleet.publish(reports_of(world, T0), after(T0))
    fleet.quiesce()
    fleet.clock.now_s = T0 + WINDOW_S + 30
    fleet.runner.feed(Tick(fleet.clock(), 0))
    answer = fleet.call(fleet.calls.pop())
    while not (isinstance(answer.reply, BatchReply) and answer.reply.share):  # it lacks epochs
        fleet.runner.feed(answer)
        answer = fleet.call(fleet.calls.pop())
    fleet.restart_leader()
    fleet.runner.feed(answer)
    assert fleet.leader.released == 0
    fleet.quiesce()
    fleet.close_slowly(T0 + WINDOW_S + 90)
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS - 1)
