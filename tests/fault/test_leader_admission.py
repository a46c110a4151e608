"""What the Leader refuses, parks and counts, and that none of it reaches a sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.leader.leader_events import EpochsArrived, ReportsArrived, Tick
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    make_epoch,
    open_epochs,
    seal_report,
    seeded_bytes,
    true_sum,
    vector_of,
)
from wire.envelope import Kind
from wire.report import Report


@pytest.fixture
def world() -> World:
    return build_world(12)


@pytest.fixture
def fleet(world: World, tmp_path: Path) -> Fleet:
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    return fleet


def released(fleet: Fleet) -> tuple[int, bool]:
    """Hosts of the only release, and whether its sum is exact over the first n hosts."""
    (release,) = fleet.store.written
    exact = true_sum(fleet.world, fleet.world.hosts[: release.n])
    return release.n, bool(np.array_equal(release.vector, exact))


def altered(report: Report, **changes: object) -> Report:
    return replace(report, **changes)  # type: ignore[arg-type]


def test_each_check_gives_its_reason_and_nothing_enters(fleet: Fleet) -> None:
    world, host = fleet.world, fleet.world.hosts[0]
    d = world.task.d
    good = seal_report(world, host, vector_of(host, T0, d))
    cases: dict[str, Report | bytes] = {
        "length": good.encode()[:-1],
        "version": good.encode()[:64] + b"plst2/report\0\0\0\0" + good.encode()[80:],
        "task_unknown": altered(good, task_id=bytes(32)),
        "host_unknown": altered(good, host_id=bytes(16)),
        "cohort": altered(good, header=replace(good.header, cohort=9)),
        "window_misaligned": altered(good, header=replace(good.header, window=T0 + 1)),
        "window_outside_task": altered(good, header=replace(good.header, window=T0 - WINDOW_S)),
        "dimension": altered(good, header=replace(good.header, d=d - 1), box=good.box[4:]),
        "window_open": altered(good, header=replace(good.header, window=T0 + 5 * WINDOW_S)),
        "box": altered(good, box=bytes(len(good.box))),
    }
    for reason, report in cases.items():
        before = fleet.leader.rejected[reason]
        fleet.send([report])
        assert fleet.leader.rejected[reason] == before + 1, reason
    assert fleet.leader.admitted == 0


def test_reports_of_one_poll_are_refused_as_one_by_one(world: World, tmp_path: Path) -> None:
    """A liar behind an honest report of the same window is not taken for one that was checked."""
    epochs = open_epochs(world)
    honest = honest_reports(world)
    stranger, other, moved, spoilt, short = honest[4:9]
    reports: list[Report | bytes] = [
        *honest[:4],
        altered(stranger, host_id=bytes(16)),
        altered(other, header=replace(other.header, cohort=9)),
        altered(moved, header=replace(moved.header, window=T0 + 5 * WINDOW_S)),
        altered(spoilt, box=bytes(len(spoilt.box))),
        short.encode()[:-4],
        honest[0],
        altered(honest[9], epoch_id=bytes(16)),
        *honest[10:],
    ]
    fleets = [Fleet(world, tmp_path / name) for name in ("together", "one-by-one")]
    for fleet, size in zip(fleets, (len(reports), 1), strict=True):
        fleet.send_epochs(epochs)
        for at in range(0, len(reports), size):
            fleet.send(reports[at : at + size])
        fleet.close_window()
    together, one_by_one = fleets
    assert together.leader.rejected == one_by_one.leader.rejected
    assert together.leader.rejected.total() == 6
    assert len(together.leader.intake.parked) == 1
    assert together.leader.admitted == one_by_one.leader.admitted == 6


def test_envelope_of_another_kind_is_refused(fleet: Fleet) -> None:
    record = fleet.log.append(Kind.EPOCH, honest_reports(fleet.world)[0].encode())
    fleet.feed(ReportsArrived([record], T0 + WINDOW_S + 1))
    assert fleet.leader.rejected == {"envelope": 1}


def test_forged_report_before_the_genuine_one_does_not_take_its_place(fleet: Fleet) -> None:
    reports = honest_reports(fleet.world)
    forged = [altered(r, box=seeded_bytes("box", i)[:4] + r.box[4:]) for i, r in enumerate(reports)]
    fleet.send(forged)
    fleet.send(reports)
    fleet.close_window()
    assert fleet.leader.rejected == {"box": 12}
    assert released(fleet) == (12, True)


def test_redelivery_is_a_duplicate_and_another_report_is_a_second(fleet: Fleet) -> None:
    world, host = fleet.world, fleet.world.hosts[0]
    reports = honest_reports(world)
    second = seal_report(
        world, host, np.full(world.task.d, 50), report_id=seeded_bytes("second")[:16]
    )
    fleet.send([*reports, reports[0], second])
    fleet.close_window()
    assert fleet.leader.rejected == {"duplicate": 1, "second_report": 1}
    assert released(fleet) == (12, True)


def test_late_reports_are_counted_and_never_released(fleet: Fleet) -> None:
    reports = honest_reports(fleet.world)
    fleet.send(reports[:10])
    fleet.close_window()
    fleet.send(reports[10:11], T0 + WINDOW_S + 31)
    fleet.send(reports[11:], T0 + WINDOW_S + 29)
    fleet.send(reports[:1], T0 + WINDOW_S + 29)
    fleet.close_window()
    assert fleet.leader.rejected == {"window_late": 1, "window_released": 2}
    assert released(fleet) == (10, True)


def test_report_after_the_freeze_does_not_enter_the_sum(world: World, tmp_path: Path) -> None:
    """A Helper that is slow leaves the set of reports as it was frozen."""
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    reports = honest_reports(world)
    fleet.send(reports[:10])
    fleet.clock.now_s = T0 + WINDOW_S + 30
    fleet.runner.feed(Tick(fleet.clock()))
    fleet.runner.feed(ReportsArrived([fleet.append(reports[10])], T0 + WINDOW_S + 29))
    fleet.runner.feed(ReportsArrived([fleet.append(reports[0])], T0 + WINDOW_S + 29))
    fleet.feed(Tick(fleet.clock()))
    assert fleet.leader.rejected == {"window_late": 1, "duplicate": 1}
    assert released(fleet) == (10, True)


def test_reports_wait_for_their_epoch_up_to_a_bound(world: World, tmp_path: Path) -> None:
    fleet = Fleet(world, tmp_path)
    epochs = open_epochs(world)
    reports = honest_reports(world)
    fleet.send([*reports, *[reports[0]] * 10])
    assert fleet.leader.admitted == 0
    assert fleet.leader.rejected == {"epoch_parked_full": 3}
    fleet.send_epochs(epochs)
    assert fleet.leader.admitted == 12
    fleet.close_window()
    assert released(fleet) == (12, True)


def test_report_whose_epoch_never_comes_is_counted_at_the_close(
    world: World, tmp_path: Path
) -> None:
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world)[:11])
    fleet.send(honest_reports(world))
    fleet.close_window()
    assert fleet.leader.rejected == {"epoch_unknown": 1}
    assert released(fleet) == (11, True)


def test_twins_die_forged_epochs_do_not_count_and_redelivery_is_no_twin(fleet: Fleet) -> None:
    world = fleet.world
    assert world.hosts[0].epoch is not None
    again = world.hosts[0].epoch.encode()
    forged, _ = make_epoch(world, world.hosts[1], salt="forged", signer=world.hosts[2].key)
    twin, _ = make_epoch(world, world.hosts[11], salt="twin")
    fleet.send_epochs([again, forged.encode(), twin.encode()])
    fleet.send(honest_reports(world))
    fleet.close_window()
    assert fleet.leader.rejected == {"epoch_signature": 1, "epoch_twin": 2}
    assert released(fleet) == (11, True)


def test_epoch_of_another_time_or_longer_than_allowed_is_refused(
    world: World, tmp_path: Path
) -> None:
    fleet = Fleet(world, tmp_path)
    open_epochs(world)
    old = world.hosts[0]
    old.epoch, old.secrets = make_epoch(world, old, not_before=T0 - 4000, length_s=3900)
    long, _ = make_epoch(world, world.hosts[1], length_s=3901)
    fleet.send_epochs([old.epoch.encode(), long.encode()])
    fleet.send([seal_report(world, old, vector_of(old, T0, world.task.d))])
    assert fleet.leader.rejected == {"epoch_interval": 2}


def test_window_closes_early_once_the_hosts_of_the_one_before_reported(fleet: Fleet) -> None:
    world = fleet.world
    fleet.send(honest_reports(world))
    fleet.close_window()
    after = T0 + WINDOW_S
    reports = honest_reports(world, window=after)
    fleet.send(reports[:11], after + WINDOW_S + 1)
    fleet.tick(after + WINDOW_S + 1)
    assert len(fleet.store.written) == 1
    fleet.send(reports[11:], after + WINDOW_S + 2)
    fleet.tick(after + WINDOW_S + 2)
    assert [one.window_start_s for one in fleet.store.written] == [T0, after]
    assert np.array_equal(fleet.store.written[1].vector, true_sum(world, world.hosts, after))


def test_window_below_n_min_is_suppressed_and_the_helper_is_not_asked(fleet: Fleet) -> None:
    """It loses nothing by waiting for one window more."""
    fleet.send(honest_reports(fleet.world)[:7])
    closes_s = T0 + WINDOW_S + 30 + WINDOW_S
    fleet.send(honest_reports(fleet.world, window=T0 + WINDOW_S)[:7], T0 + 2 * WINDOW_S + 1)
    fleet.tick(closes_s - 1)
    assert fleet.leader.suppressed == {}
    fleet.tick(closes_s)
    assert fleet.store.written == []
    assert fleet.leader.suppressed == {"n_min": 1}
    (told,) = fleet.told
    assert (told.reason, told.hosts, told.public().n_min) == ("n_min", 7, fleet.world.task.n_min)
    assert fleet.helper_state.counts()["answers"] == 0


def test_host_with_a_bad_tag_is_left_out_of_the_release(fleet: Fleet) -> None:
    world = fleet.world
    bad = seal_report(
        world, world.hosts[11], vector_of(world.hosts[11], T0, world.task.d), spoil_tag=True
    )
    fleet.send([*honest_reports(world, world.hosts[:11]), bad])
    fleet.close_window()
    assert released(fleet) == (11, True)
    assert fleet.store.written[0].rejections == {"tag": 1}


def test_host_with_bad_check_words_is_left_out_of_the_release(fleet: Fleet) -> None:
    world = fleet.world
    vector = vector_of(world.hosts[11], T0, world.task.d)
    vector[0] = 5
    bad = seal_report(world, world.hosts[11], vector)
    fleet.send([*honest_reports(world, world.hosts[:11]), bad])
    fleet.close_window()
    assert released(fleet) == (11, True)
    assert fleet.store.written[0].rejections == {"check_words": 1}


def test_leader_commits_offsets_of_settled_windows_only(fleet: Fleet) -> None:
    world = fleet.world
    fleet.send(honest_reports(world))
    fleet.tick(T0 + WINDOW_S + 2)
    assert len(fleet.log.uncommitted()) == 12
    fleet.close_window()
    fleet.tick(fleet.clock() + 1)
    assert fleet.log.uncommitted() == []


def test_epochs_event_sorts_partitions_by_the_logs_clock(world: World, tmp_path: Path) -> None:
    fleet = Fleet(world, tmp_path)
    host = world.hosts[0]
    first, _ = make_epoch(world, host, name=1, ledger_ctr=1)
    second, _ = make_epoch(world, host, name=2, ledger_ctr=2)
    records = [
        replace(fleet.epoch_log.append(Kind.EPOCH, second.encode()), appended_s=2.0),
        replace(fleet.epoch_log.append(Kind.EPOCH, first.encode()), appended_s=1.0),
    ]
    fleet.feed(EpochsArrived(records, T0))
    assert fleet.leader.rejected == {}
