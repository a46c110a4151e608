"""Spark's reader against who may write to the log, or keeps it: nobody stops the fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.leader.admission import PARKED_PER_HOST
from aggregator.protocol.interfaces import BatchKey
from aggregator.spark.messages import (
    NamedHosts,
    PartitionSum,
    ReaderUpdate,
    Refusals,
    decode_update,
    encode_update,
)
from aggregator.spark.partial_sums import PartialSum
from aggregator.spark.sum_store import SumStore
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    World,
    build_world,
    honest_reports,
    open_epochs,
    seeded_bytes,
    true_sum,
)
from tests.reader_kit import HOSTS, PARTITIONS, after, give_epochs, honest_bytes
from tests.spark_kit import Checkpoint, SparkFleet
from transport.interface import partition_of
from transport.settings.config import ConfigError
from wire.envelope import Kind
from wire.fields import MAX_TIME
from wire.report import EPOCH_AT, TASK_AT

KEY = BatchKey(b"t" * 32, 0, T0)


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def a_pass(first: int, reasons: dict[str, int], hosts: int = 0) -> PartialSum:
    return PartialSum(
        *(KEY, 1, b"e" * 72 * hosts, None, first, T0 + 90, T0 + 61.0),
        *(b"r" * 144 * hosts, tuple(range(hosts)), reasons, b"v" * 8 * hosts),
    )


def test_passes_that_admit_no_host_leave_one_sum(tmp_path: Path) -> None:
    store = SumStore(tmp_path / "sums.sqlite")
    store.put([a_pass(3, {"box": 1})])
    store.put([a_pass(5, {"box": 2}, hosts=1)])
    for number in range(50):
        store.put([a_pass(7 + number, {"box": 1, "tag": 1})])
    store.close()
    again = SumStore(tmp_path / "sums.sqlite")
    for found in (store, again):
        (sums,) = found.sums.values()
        assert [(len(part.offsets), part.first, part.reasons) for part in sums] == [
            (1, 5, {"box": 2}),
            (0, 3, {"box": 51, "tag": 50}),
        ]
    again.close()


def waiting(fleet: SparkFleet) -> set[bytes]:
    """Names of epochs that somebody keeps: both ends keep the same."""
    known = fleet.drivers[-1].shell._state._epochs._unknown
    assert fleet.reader._wanted == known
    return known


def test_epochs_that_forgers_name_are_forgotten_where_no_report_waits(
    world: World, tmp_path: Path
) -> None:
    fleet = SparkFleet(world, tmp_path)
    driver = fleet.drive()
    fleet.quiesce()
    honest = honest_bytes(world)
    for number in range(3 * PARKED_PER_HOST):
        name = seeded_bytes("an epoch of nobody", number)[:16]
        fleet.publish([r[:EPOCH_AT] + name + r[TASK_AT:] for r in honest], after(T0))
        fleet.quiesce()
    assert waiting(fleet) == {report.name for report in driver.store.parked}
    assert len(waiting(fleet)) == HOSTS * PARKED_PER_HOST


def test_forged_records_leave_nothing_behind(world: World, tmp_path: Path) -> None:
    fleet = SparkFleet(world, tmp_path)
    driver = fleet.drive()
    for number in range(500):
        forged = seeded_bytes("forged", number) * 2
        fleet.group.append(Kind.REPORT, forged, forged[:16])
    fleet.quiesce()
    assert (waiting(fleet), driver.store.parked, driver.store.sums) == (set(), [], {})
    assert fleet.leader.rejected.total() == 500


def test_epoch_that_a_forger_named_is_waited_for_once_its_host_names_it(
    world: World, tmp_path: Path
) -> None:
    fleet = SparkFleet(world, tmp_path)
    fleet.drive()
    reports = honest_bytes(world)
    fleet.publish([raw[:-1] for raw in reports], after(T0))  # of another length
    fleet.quiesce()
    fleet.publish(reports, after(T0))
    fleet.quiesce()
    assert fleet.leader.admitted == 0
    give_epochs(fleet)
    fleet.quiesce()
    assert fleet.leader.admitted == HOSTS
    assert waiting(fleet) == set()


def test_offsets_that_are_no_records_hold_up_no_window(world: World, tmp_path: Path) -> None:
    fleet = SparkFleet(world, tmp_path)
    fleet.drive()
    give_epochs(fleet)
    for raw in honest_bytes(world):
        fleet.publish([raw], after(T0))
        fleet.group.next[partition_of(raw[:16], PARTITIONS)] += 1  # as a transaction ends
    fleet.quiesce()
    assert fleet.reader.lag(0, fleet.clock()) == 0
    fleet.close_slowly(T0 + WINDOW_S + 30)
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS)


def test_report_put_into_two_partitions_counts_once(world: World, tmp_path: Path) -> None:
    """A broker that lies about places: the host is in the batch, and in the sum, once."""
    fleet = SparkFleet(world, tmp_path)
    fleet.drive()
    give_epochs(fleet)
    raw = honest_bytes(world)
    fleet.publish(raw, after(T0))
    for part in range(PARTITIONS):
        fleet.group.append(Kind.REPORT, raw[0], raw[0][:16], part)
    fleet.quiesce()
    fleet.close_slowly(T0 + WINDOW_S + 30)
    (released,) = fleet.store.written
    assert released.vector.tolist() == true_sum(world, world.hosts).tolist()
    assert released.rejections == {"duplicate": PARTITIONS}


def test_host_that_another_driver_does_not_find_is_not_in_the_batch(
    world: World, tmp_path: Path
) -> None:
    """Log and store have lost a report that the driver that fell had named: nobody could sum it."""
    fleet = SparkFleet(world, tmp_path)
    fleet.drive()
    give_epochs(fleet)
    fleet.publish(honest_bytes(world), after(T0))
    fleet.quiesce()
    assert fleet.leader.admitted == HOSTS
    lost = fleet.group.records.pop()
    fleet.drivers[-1].fall()
    (tmp_path / "sums.sqlite").unlink()
    fleet.drive(Checkpoint("another"))
    fleet.quiesce()
    assert fleet.leader.admitted == HOSTS - 1
    fleet.close_slowly(T0 + WINDOW_S + 30)
    (released,) = fleet.store.written
    kept = [host for host in world.hosts if host.id != lost.key]
    assert (released.n, released.vector.tolist()) == (HOSTS - 1, true_sum(world, kept).tolist())


# What the driver says: the Leader holds the signing key, and believes no bytes

A_SUM = PartitionSum(KEY, 1, 2, b"v" * 8)
SAID = ReaderUpdate(
    7,
    4,
    (1.0, 2.5),
    (NamedHosts(KEY, 1, b"e" * 144, None), NamedHosts(KEY, 3, b"", 9.5)),
    (Refusals(KEY, {"box": 2}),),
    {"length": 3},
    (b"w" * 32,),
    (b"d" * 32,) * 2,
    (A_SUM,),
)


def test_update_comes_as_it_was_said() -> None:
    assert decode_update(encode_update(SAID)) == SAID
    assert decode_update(encode_update(ReaderUpdate(None))).lag is None


def test_times_of_a_log_that_lies_keep_no_update_back() -> None:
    said = encode_update(ReaderUpdate(appended_s=(-1.0, float("inf"), float("nan"), 1e300)))
    assert all(0 <= at <= MAX_TIME for at in decode_update(said).appended_s)


def test_epoch_that_was_given_up_and_asked_for_anew_is_waited_for(
    world: World, tmp_path: Path
) -> None:
    fleet = SparkFleet(world, tmp_path)
    name = seeded_bytes("an epoch", 0)
    for update in (ReaderUpdate(wanted=(name,)), ReaderUpdate(wanted=(name,), dropped=(name,))):
        fleet.pipe.say(update)
        fleet.settle()
    assert fleet.reader._wanted == {name}


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"\xff" * 9, "other bytes"),
        (b"[" * 100_000, "other bytes"),
        (b"[]", "expected a table"),
        (b'{"appended_s": [1' + b"0" * 400 + b"]}", "other bytes"),
        (replace(SAID, lag=1 << 70), "lag"),
        (replace(SAID, partitions=1 << 30), "partitions"),
        (replace(SAID, named=(NamedHosts(KEY, 1, b"e" * 71, None),)), "entries"),
        (replace(SAID, named=(NamedHosts(KEY, 1 << 30, b"", None),)), "partition"),
        (replace(SAID, named=(NamedHosts(KEY, 1, b"", float("nan")),)), "late_s"),
        (replace(SAID, refusals=(Refusals(replace(KEY, task_id=b"t"), {}),)), "task_id"),
        (replace(SAID, refusals=(Refusals(replace(KEY, window=1 << 62), {}),)), "window"),
        (replace(SAID, refusals=(Refusals(KEY, {"a reason of its own": 1}),)), "reason"),
        (replace(SAID, rejected={"\x1b[2J": 1}), "reason"),
        (replace(SAID, wanted=(b"w" * 31,)), "wanted"),
        (replace(SAID, dropped=(b"d" * 33,)), "dropped"),
        (replace(SAID, sums=(replace(A_SUM, partition=1 << 30),)), "partition"),
    ],
)
def test_update_that_cannot_be_is_refused(said: bytes | ReaderUpdate, named: str) -> None:
    raw = said if isinstance(said, bytes) else encode_update(said)
    with pytest.raises(ConfigError, match=named):
        decode_update(raw)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda part: replace(part, vector=part.vector[4:]),
        lambda part: replace(part, hosts=part.hosts + 1),
        lambda part: replace(part, partition=PARTITIONS),  # where no host of the batch lies
    ],
)
def test_sum_of_other_hosts_ends_the_driver_that_gave_it(
    world: World, tmp_path: Path, spoil: Callable[[PartitionSum], PartitionSum]
) -> None:
    """The one that follows is asked again."""
    fleet = SparkFleet(world, tmp_path)
    checkpoint = Checkpoint()
    fleet.drive(checkpoint)
    give_epochs(fleet)
    fleet.publish(honest_bytes(world), after(T0))
    fleet.quiesce()
    say = fleet.pipe.say
    fleet.pipe.say = lambda update: say(  # type: ignore[method-assign]
        replace(update, sums=tuple(spoil(part) for part in update.sums))
    )
    fleet.close_slowly(T0 + WINDOW_S + 30)
    assert fleet.pipe.refused
    assert fleet.pipe.refused[0].startswith("sum: expected")
    assert fleet.leader.released == 0
    fleet.pipe.say = say  # type: ignore[method-assign]
    fleet.drive(checkpoint)
    fleet.close_slowly(T0 + WINDOW_S + 31)
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS)


def test_sums_that_no_update_has_room_for_come_one_by_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.spark.sum_store.UPDATE_BYTES", 1)
    fleet = SparkFleet(world, tmp_path)
    fleet.drive()
    give_epochs(fleet)
    fleet.publish([r.encode() for r in honest_reports(world)], after(T0))
    fleet.quiesce()
    fleet.close_slowly(T0 + WINDOW_S + 30)
    said = [len(update.sums) for update in fleet.pipe.updates if update.sums]
    assert said == [1] * len({record.partition for record in fleet.group.records})
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS)
