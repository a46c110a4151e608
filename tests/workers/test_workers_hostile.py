"""Workers against who may write to the log, or keeps it: nobody stops the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.workers.words import Word
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    World,
    build_world,
    honest_reports,
    open_epochs,
    seeded_bytes,
)
from tests.workers.test_workers_release import fleet_of, give_epochs, send
from tests.workers_kit import PARTITIONS, WorkersFleet
from transport.port import partition_of
from wire.envelope import Kind

HOSTS = 14


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def test_offsets_that_are_no_records_hold_up_no_window(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    for report in honest_reports(world, window=T0):
        raw = report.encode()
        send(fleet, [raw], T0 + WINDOW_S + 1)
        fleet.group.mark(partition_of(raw[:16], PARTITIONS))
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS)


def test_worker_that_others_stood_in_for_goes_on_behind_what_they_settled(
    world: World, tmp_path: Path
) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    give_epochs(fleet)
    first, second = fleet.workers
    windows = (T0, T0 + WINDOW_S, T0 + 2 * WINDOW_S)
    for number, window in enumerate(windows):
        at_s = window + WINDOW_S + 1
        if number == 1:  # the first hangs; the other reads all, settles and commits
            fleet.divide(dict.fromkeys(range(PARTITIONS), second))
        send(fleet, [r.encode() for r in honest_reports(world, window=window)], at_s)
        if number == 2:
            fleet.divide_evenly()
            fleet.workers[first]._transport.close()  # its place in the log is the group's
        for _ in range(2):
            for name in [second] * 6 if number == 1 else [first, second] * 6:
                fleet.turn(name)
            fleet.tick(window + WINDOW_S + 30)
    assert [(w.window_start_s, w.n) for w in fleet.store.written] == [
        (window, HOSTS) for window in windows
    ]


def names_waited_for(fleet: WorkersFleet) -> int:
    known = [fleet.leader._wanted, *(w._worker._epochs._unknown for w in fleet.workers.values())]
    return sum(map(len, known))


def test_forged_records_leave_nothing_behind(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    for number in range(500):
        forged = seeded_bytes("forged", number) * 2
        fleet.group.append(Kind.REPORT, forged, forged[:16])
    fleet.quiesce()
    assert names_waited_for(fleet) == 0
    assert fleet.leader.rejected.total() == 500


def test_epoch_that_a_forger_named_is_waited_for_once_its_host_names_it(
    world: World, tmp_path: Path
) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    at_s = T0 + WINDOW_S + 1
    reports = [report.encode() for report in honest_reports(world, window=T0)]
    send(fleet, [raw[:-1] for raw in reports], at_s)  # of another length
    for name in fleet.workers:
        fleet.turn(name)
    send(fleet, reports, at_s)
    fleet.quiesce()
    assert fleet.leader.admitted == 0
    give_epochs(fleet)
    fleet.settle_words()
    fleet.quiesce()
    assert fleet.leader.admitted == HOSTS
    assert names_waited_for(fleet) == 0


def test_epoch_is_waited_for_by_who_gave_up_and_asks_anew(world: World, tmp_path: Path) -> None:
    fleet = fleet_of(world, tmp_path / "w")
    name = seeded_bytes("an epoch", 0)
    fleet.leader.join("worker")
    for word in (Word(wanted=[name]), Word(wanted=[name], dropped=[name])):
        fleet.leader.hear("worker", word, T0)
    assert fleet.leader._wanted == {name: {"worker"}}


def test_sums_that_no_word_has_room_for_come_one_by_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.workers.worker.WORD_BYTES", 1)
    fleet = fleet_of(world, tmp_path / "w", workers=1)
    give_epochs(fleet)
    send(fleet, [r.encode() for r in honest_reports(world, window=T0)], T0 + WINDOW_S + 1)
    fleet.quiesce()
    fleet.tick(T0 + WINDOW_S + 30)
    fleet.quiesce()
    (way,) = fleet.ways.values()
    assert [len(word.sums) for word in way.words if word.sums] == [1] * PARTITIONS
    assert (fleet.leader.released, fleet.store.written[0].n) == (1, HOSTS)
