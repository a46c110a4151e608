"""Workers and a coordinator release what one process releases, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from aggregator.leader.admission import PARKED_PER_HOST
from aggregator.leader.leader_events import EpochsArrived
from aggregator.party.quotas import Quotas
from aggregator.protocol.answers import BatchKey
from aggregator.protocol.helper_port import (
    BatchReply,
    HelperStatus,
    HelperUnavailable,
    ReleaseReply,
)
from aggregator.workers.words import Granted
from aggregator.workers.worker import Worker
from tests.integration.test_local_scheme import local_epoch, local_report, local_world
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    open_epochs,
    seal_report,
    true_sum,
    vector_of,
)
from tests.workers_kit import PARTITIONS, OneProcess, WorkersFleet, what_came
from transport.port import Record
from wire.envelope import Kind
from wire.topics import REPORTS

WINDOWS = 3
HOSTS = 14


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def epoch_records(fleet: Fleet) -> list[Record]:
    raw = [host.epoch.encode() for host in fleet.world.hosts if host.epoch is not None]
    return [fleet.epoch_log.append(Kind.EPOCH, epoch) for epoch in raw]


def give_epochs(fleet: Fleet) -> None:
    fleet.feed(EpochsArrived(epoch_records(fleet), fleet.clock()))


def fleet_of(world: World, folder: Path, workers: int = 2) -> WorkersFleet:
    folder.mkdir(exist_ok=True)
    fleet = WorkersFleet(world, folder)
    for _ in range(workers):
        fleet.add_worker()
    fleet.divide_evenly()
    fleet.quiesce(2)
    return fleet


def one_process(world: World, folder: Path) -> OneProcess:
    folder.mkdir(exist_ok=True)
    return OneProcess(world, folder)


def reports_of(world: World, window: int, hosts: int = HOSTS) -> list[bytes]:
    """Honest reports, a second one of a host, a bad tag and a bad box: the last three are lies."""
    honest = [one.encode() for one in honest_reports(world, world.hosts[:hosts], window=window)]
    host = world.hosts[0]
    vector = vector_of(host, window, world.task.d)
    second = seal_report(world, host, vector, window=window, report_id=b"s" * 16).encode()
    liar = world.hosts[1]
    honest[1] = seal_report(
        world, liar, vector_of(liar, window, world.task.d), window=window, spoil_tag=True
    ).encode()
    spoilt = honest[2][:-1] + bytes([honest[2][-1] ^ 1])
    return [*honest, honest[3], second, spoilt]


def send(fleet: WorkersFleet, raw: list[bytes], at_s: float) -> None:
    fleet.clock.now_s = at_s
    for report in raw:
        fleet.group.append(Kind.REPORT, report, report[:16])


def play_window(fleet: WorkersFleet, other: OneProcess, window: int) -> None:
    at_s = window + WINDOW_S + 1
    raw = reports_of(fleet.world, window)
    before = len(fleet.group.in_order)
    send(fleet, raw, at_s)
    other.clock.now_s = at_s
    other.read(fleet.group.in_order[before:])
    fleet.quiesce()
    for party in (fleet, other):
        party.tick(window + WINDOW_S + 30)
    fleet.quiesce()
    for party in (fleet, other):  # releases are countersigned one tick later
        party.tick(window + WINDOW_S + 30)


def test_two_workers_release_what_one_process_does(world: World, tmp_path: Path) -> None:
    fleet, other = fleet_of(world, tmp_path / "w"), one_process(world, tmp_path / "one")
    for party in (fleet, other):
        give_epochs(party)
    for number in range(WINDOWS):
        play_window(fleet, other, T0 + number * WINDOW_S)
    assert len(what_came(fleet)) == WINDOWS
    assert what_came(fleet) == what_came(other)
    assert [w.rejections for w in fleet.store.written] == [
        w.rejections for w in other.store.written
    ]
    assert fleet.leader.rejected == other.leader.rejected
    accepted = [host for host in world.hosts if host.number != 1]
    for window, _batch, _entry, vector, n in what_came(fleet):
        assert (vector, n) == (true_sum(world, accepted, window).tolist(), HOSTS - 1)


def test_commit_stays_at_the_oldest_window_that_has_not_ended(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    fleet.quiesce()
    assert set(fleet.group.committed.values()) <= {0}
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    assert len(what_came(fleet)) == 1
    ends = {part: len(records) for part, records in enumerate(fleet.group.records) if records}
    assert fleet.leader.sums_taken == len(ends)
    assert {slot[1]: at for slot, at in fleet.group.committed.items() if at} == ends


def test_partitions_of_a_worker_that_is_silent_are_unread(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    now_s = fleet.clock()
    assert fleet.leader.unread(now_s) == 0
    assert fleet.leader.unread(now_s + 3) == PARTITIONS


def test_worker_that_fell_after_the_freeze_is_followed_by_one_that_reads_again(
    world: World, tmp_path: Path
) -> None:
    """The Helper has answered; the vectors of two partitions are gone with the worker."""
    fleet, other = fleet_of(world, tmp_path / "w"), one_process(world, tmp_path / "one")
    for party in (fleet, other):
        give_epochs(party)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    other.clock.now_s = T0 + WINDOW_S + 1
    other.read(fleet.group.in_order)
    fleet.quiesce()
    fleet.kill("worker-0")
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    assert what_came(fleet) == []
    fleet.add_worker()
    fleet.divide_evenly()
    fleet.quiesce()
    other.tick(T0 + WINDOW_S + 30)
    for party in (fleet, other):
        party.tick(T0 + WINDOW_S + 31)
    assert len(what_came(fleet)) == 1
    assert what_came(fleet) == what_came(other)


def test_worker_that_was_replaced_and_wakes_up_is_not_believed(
    world: World, tmp_path: Path
) -> None:
    """It says its old claims; what it names no longer counts, and it starts over."""
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    send(fleet, reports_of(world, T0), T0 + WINDOW_S + 1)
    fleet.quiesce()
    window = fleet.leader.find_window(BatchKey(world.task_id, 0, T0))
    assert window is not None
    assert window.n == HOSTS
    asleep = fleet.workers["worker-0"]
    rejections = dict(window.rejections)
    fleet.divide(dict.fromkeys(range(PARTITIONS), "worker-1"))
    for _ in range(6):
        fleet.turn("worker-1")
    asleep._say(asleep._worker.word(0))
    fleet.settle_words()
    asleep._say(asleep._worker.word(0))
    assert asleep._worker.claims.superseded
    assert (window.n, window.rejections) == (HOSTS, rejections)
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    assert len(what_came(fleet)) == 1


def test_host_that_a_new_claim_does_not_find_is_not_in_the_batch(
    world: World, tmp_path: Path
) -> None:
    """The log has lost a report that the worker that fell had named: nobody could sum it."""
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    send(fleet, [one.encode() for one in honest_reports(world)], T0 + WINDOW_S + 1)
    fleet.quiesce()
    part = next(part for part in (0, 2) if fleet.group.records[part])
    lost = fleet.group.records[part].pop()
    fleet.kill("worker-0")
    fleet.divide(dict.fromkeys(range(PARTITIONS), "worker-1"))
    fleet.clock.now_s = T0 + WINDOW_S + 30
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    (released,) = fleet.store.written
    kept = [host for host in world.hosts if host.id != lost.key]
    assert (released.n, released.vector.tolist()) == (HOSTS - 1, true_sum(world, kept).tolist())


def test_more_unsettled_windows_than_parked_places_outlive_a_restart(
    world: World, tmp_path: Path
) -> None:
    """All of them are read again before the coordinator has given an epoch."""
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    helper, fleet.port = fleet.port, AwayHelper()
    windows = [T0 + number * WINDOW_S for number in range(PARKED_PER_HOST + 2)]
    for window in windows:
        reports = honest_reports(world, window=window)
        send(fleet, [one.encode() for one in reports], window + WINDOW_S + 1)
        fleet.quiesce(3)
        fleet.tick(window + WINDOW_S + 30)
    assert len(fleet.leader.chains.frozen) == len(windows)
    fleet.restart_leader()
    fleet.quiesce()
    fleet.port = helper
    for step in range(len(windows) + 2):
        fleet.tick(windows[-1] + 2 * WINDOW_S + 60 * step)
        fleet.quiesce(3)
    assert [window for window, *_ in what_came(fleet)] == windows


def test_window_that_workers_have_no_room_for_ends_as_overload(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "w").mkdir()
    fleet = WorkersFleet(world, tmp_path / "w")
    fleet.quotas = Quotas(window_bytes=1)  # one window of a worker is always taken
    fleet.add_worker()
    fleet.divide_evenly()
    fleet.quiesce(2)
    give_epochs(fleet)
    windows = [T0 + number * WINDOW_S for number in range(3)]
    for window in windows[:2]:
        reports = honest_reports(world, world.hosts[:-1], window=window)
        send(fleet, [one.encode() for one in reports], windows[1] + 2)
        fleet.quiesce()
    assert fleet.leader.admitted < HOSTS
    for step in range(4):
        fleet.tick(windows[2] + 31 + step)
        fleet.quiesce()
    reports = honest_reports(world, window=windows[2])
    send(fleet, [one.encode() for one in reports], windows[2] + WINDOW_S + 1)
    fleet.quiesce()
    fleet.tick(windows[2] + WINDOW_S + 31)
    fleet.quiesce()
    assert fleet.leader.suppressed["overload"] >= 1
    assert fleet.leader.rejected["overload"] >= HOSTS - 1


def test_worker_reads_nothing_twice_and_nothing_that_it_does_not_hold(world: World) -> None:
    numbers = (number.to_bytes(16, "big") for number in range(9))
    worker = Worker(world.parties, lambda: next(numbers))
    worker.divide([1])
    assert not worker.hear([record_at(1, 5)], T0)  # the claim does not count yet
    worker.heed([Granted(worker.word(0).claims[0])], T0)
    assert worker.hear([record_at(1, 5), record_at(1, 6)], T0)
    assert not worker.hear([record_at(1, 6)], T0)
    assert not worker.hear([record_at(1, 7), record_at(1, 7)], T0)
    assert not worker.hear([record_at(2, 0)], T0)
    assert worker.hear([record_at(1, 7)], T0)
    assert worker.offsets() == {(REPORTS, 1): 8}
    assert worker.hear([record_at(1, 9)], T0)  # what lies between is no record
    assert worker.offsets() == {(REPORTS, 1): 10}


def record_at(partition: int, offset: int) -> Record:
    return Record(REPORTS, partition, offset, b"", b"no report", float(T0))


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


def test_report_put_into_two_partitions_counts_once(world: World, tmp_path: Path) -> None:
    """A broker that lies about places: the host is in the batch, and in the sum, once."""
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    raw = [one.encode() for one in honest_reports(world)]
    send(fleet, raw, T0 + WINDOW_S + 1)
    for part in range(PARTITIONS):
        fleet.group.append(Kind.REPORT, raw[0], raw[0][:16], part)
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    (released,) = fleet.store.written
    assert released.vector.tolist() == true_sum(world, world.hosts).tolist()
    assert released.rejections == {"duplicate": PARTITIONS}


def test_local_scheme_is_released_without_a_helper(tmp_path: Path) -> None:
    world = local_world()
    fleet = fleet_of(world, tmp_path / "w")
    for host in world.hosts:
        local_epoch(world, host)
    give_epochs(fleet)
    vectors = [vector_of(host, T0, world.task.d) for host in world.hosts]
    vectors[0][3] += 2**40  # int64: nothing wraps at 2^32
    raw = [local_report(world, h, v).encode() for h, v in zip(world.hosts, vectors, strict=True)]
    send(fleet, raw, T0 + WINDOW_S + 1)
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 31)
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 32)
    (released,) = fleet.store.written
    assert released.vector.tolist() == sum(vectors).tolist()  # type: ignore[union-attr]
