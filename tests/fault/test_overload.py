"""More than fits: what is refused first, that it is counted, and that the Leader recovers."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import ReportsArrived
from aggregator.leader.log_publisher import LogPublisher
from aggregator.leader.window_closing import begin_until_s
from aggregator.party.config import DeadLetterQuota, Quotas
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    make_epoch,
    open_epochs,
    true_sum,
)
from transport.embedded.embedded import EmbeddedLog
from transport.interface import Record, UnknownTopic
from wire.fields import EpochId
from wire.rejection import Reason
from wire.topics import DEAD_LETTERS, EPOCHS, KEPT, REPORTS

HOSTS = 12
HOUR_S = 3600


def fleet_with(world: World, folder: Path, quotas: Quotas) -> Fleet:
    """A fleet whose Leader has these quotas; its epochs are open."""

    class Bounded(Fleet):
        make_leader = staticmethod(partial(Leader, quotas=quotas))

    fleet = Bounded(world, folder)
    fleet.send_epochs(open_epochs(world))
    return fleet


def window(number: int) -> int:
    return T0 + number * WINDOW_S


def row_bytes(world: World) -> int:
    return 4 * world.task.d


def some_reports(world: World, number: int, hosts: int = HOSTS - 1) -> list[bytes]:
    """Reports of a window that lacks a host, so that it stays open until its lateness ends."""
    found = honest_reports(world, world.hosts[:hosts], window(number))
    return [report.encode() for report in found]


def suppressed(fleet: Fleet) -> dict[int, str]:
    return {(told.key.window - T0) // WINDOW_S: told.reason for told in fleet.told}


def test_window_without_room_is_refused_whole_and_the_next_with_room_is_taken(
    tmp_path: Path,
) -> None:
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(window_bytes=HOSTS * row_bytes(world) + 1))
    fleet.send(some_reports(world, 0), window(1) + 1)
    fleet.send(some_reports(world, 1), window(1) + 2)  # half of it, by a clock that is ahead
    assert fleet.leader.rejected == {"overload": HOSTS - 1}
    held = [opened.held_bytes for opened in fleet.leader._unsettled_windows()]
    assert sum(held) <= HOSTS * row_bytes(world)

    fleet.tick(window(1) + 31)
    fleet.send(some_reports(world, 1), window(2) + 1)  # room by now: but it was refused whole
    fleet.tick(window(2) + 31)
    fleet.send(some_reports(world, 2), window(3) + 1)
    fleet.tick(window(3) + 31)

    assert [release.window_start_s for release in fleet.store.written] == [window(0), window(2)]
    assert all(release.n == HOSTS - 1 for release in fleet.store.written)
    assert suppressed(fleet) == {1: "overload"}
    assert fleet.leader.rejected["overload"] == 2 * (HOSTS - 1)


def test_refused_window_ends_no_earlier_one_that_is_still_read(tmp_path: Path) -> None:
    """Of two that no task names, from before its acceptance: the log has more of the first."""
    world = build_world(HOSTS, first_window=window(-2))
    fleet = fleet_with(world, tmp_path, Quotas(window_bytes=HOSTS * row_bytes(world) + 1))
    begun, rest = some_reports(world, -2)[:3], some_reports(world, -2)[3:]
    fleet.send([*begun, *some_reports(world, -1, 3)], window(1) + 1)
    fleet.tick(window(1) + 2, lag=len(rest))
    assert suppressed(fleet) == {}
    fleet.send(rest, window(1) + 3)
    fleet.tick(window(3))
    (release,) = fleet.store.written
    assert (release.window_start_s, release.n) == (window(-2), HOSTS - 1)
    assert suppressed(fleet) == {-1: "overload"}


def test_one_window_is_always_taken(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(window_bytes=1))
    fleet.send(honest_reports(world))
    fleet.tick(window(1) + 31)
    (release,) = fleet.store.written
    assert np.array_equal(release.vector, true_sum(world, world.hosts))


def test_forged_reports_take_no_room(tmp_path: Path) -> None:
    """Who cannot seal a host's box neither begins a window nor has one refused."""
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(window_bytes=HOSTS * row_bytes(world) + 1))
    forged = [
        replace(report, box=bytes(len(report.box)))
        for report in honest_reports(world, window=window(1))
    ]
    fleet.send(forged, window(1) + 2)
    fleet.send(some_reports(world, 0), window(1) + 2)
    assert fleet.leader.rejected == {"box": HOSTS}
    assert fleet.leader.admitted == HOSTS - 1


def test_first_reports_that_are_refused_leave_no_row(tmp_path: Path) -> None:
    """A box is opened where its vector will lie: not before its window has a host."""
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(window_bytes=HOSTS * row_bytes(world) + 1))
    forged = [
        replace(report, box=bytes(len(report.box)))
        for report in honest_reports(world, window=window(1))
    ]
    fleet.send(forged[:3], window(1) + 2)
    fleet.send(some_reports(world, 0), window(1) + 2)
    fleet.send(some_reports(world, 1), window(1) + 2)
    assert fleet.leader.rejected == {"box": 3, "overload": HOSTS - 1}
    fleet.send(forged[:3], window(1) + 3)  # refused whole: no box is opened any more
    assert fleet.leader.rejected == {"box": 3, "overload": HOSTS + 2}
    (refused,) = (opened for opened in fleet.leader._unsettled_windows() if opened.refused)
    assert not refused.parts


STEP_S = 5
REFUSED_COST = 0.2
"""Of what an admitted report costs: its box is not opened."""


class SlowLeader:
    """A Leader with time for so many reports a second, and what waits for it on the log."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.waiting: deque[Record] = deque()
        self._credit = 0.0

    def step(self, now_s: float, arrived: list[bytes], per_s: float) -> None:
        """Let STEP_S seconds pass."""
        self.waiting.extend(self.fleet.append(report) for report in arrived)
        self._credit = min(self._credit, 0.0) + per_s * STEP_S
        while self.waiting and self._credit > 0:
            before = self.fleet.leader.admitted
            self.fleet.feed(ReportsArrived([self.waiting.popleft()], now_s))
            self._credit -= 1.0 if self.fleet.leader.admitted > before else REFUSED_COST
        self.fleet.tick(now_s, len(self.waiting))


def play(leader: SlowLeader, number: int, per_s: float) -> None:
    """Send the reports of a window within its lateness, and let a minute pass."""
    world = leader.fleet.world
    reports = [report.encode() for report in honest_reports(world, window=window(number))]
    for at_s in range(0, WINDOW_S, STEP_S):
        leader.step(window(number + 1) + 1 + at_s, reports[:3], per_s)
        reports = reports[3:]


def open_new_epochs(fleet: Fleet, number: int) -> None:
    for host in fleet.world.hosts:
        host.epoch, host.secrets = make_epoch(
            fleet.world, host, name=1 + number, not_before=window(number) - 60
        )
    fleet.send_epochs([host.epoch.encode() for host in fleet.world.hosts if host.epoch])


def test_twice_the_load_that_fits_releases_whole_windows_and_is_recovered_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times the retention under twice the load, then half of it, by a simulated clock."""
    monkeypatch.setattr("aggregator.leader.window_closing.HOSTS_READ_A_SECOND", HOSTS / 600)
    world = build_world(HOSTS, retention_s=600, lateness_s=30)
    fleet = fleet_with(world, tmp_path, Quotas())
    sent_per_s, busy, calm = HOSTS / WINDOW_S, 40, 40
    leader = SlowLeader(fleet)
    for number in range(busy + calm):
        if number % 40 == 30:
            open_new_epochs(fleet, number)
        play(leader, number, sent_per_s / 2 if number < busy else 2 * sent_per_s)
    fleet.tick(window(busy + calm + 1))

    written = fleet.store.written
    released = {(release.window_start_s - T0) // WINDOW_S: release for release in written}
    for number, release in released.items():
        assert release.n == HOSTS, f"window {number} was released in part"
        assert np.array_equal(release.vector, true_sum(world, world.hosts, window(number)))
    lost = suppressed(fleet)
    assert released.keys() | lost.keys() == set(range(busy + calm))
    assert set(lost.values()) == {"overload"}
    assert max(lost) < busy + 10, "the Leader has not recovered"
    assert len(lost) <= busy / 2, "less was released than fits"
    # What comes of a window that has been settled for want of room is late, and counted as that.
    assert fleet.leader.rejected.keys() == {"overload", "window_late"}
    assert fleet.leader.rejected.total() == HOSTS * len(lost)
    assert not leader.waiting


def test_window_is_begun_only_while_it_can_be_read_in_time() -> None:
    world = build_world(HOSTS)
    (known,) = world.directory().tasks.values()
    over_s = T0 + WINDOW_S + 6 * HOUR_S
    assert begin_until_s(known, T0, 100_000) == over_s - 420
    assert begin_until_s(known, T0, HOSTS) == over_s
    short = build_world(HOSTS, retention_s=60)
    (known,) = short.directory().tasks.values()
    assert begin_until_s(known, T0, 100_000) == T0 + WINDOW_S + 30


def test_operator_that_sends_again_and_again_has_a_quota(tmp_path: Path) -> None:
    world = build_world(HOSTS)  # two hosts an operator
    quotas = Quotas(retries=3, operators={"operator-1": 0}, dead_letters=DeadLetterQuota())
    fleet = fleet_with(world, tmp_path, quotas)
    reports = honest_reports(world, world.hosts[:-1])
    fleet.send(reports)
    fleet.send([reports[0]] * 10)
    assert fleet.leader.rejected == {"duplicate": 6, "quota": 4}
    fleet.send([reports[2]] * 5)  # of operator-1, which has no retries
    assert fleet.leader.rejected == {"duplicate": 6, "quota": 9}
    fleet.send([reports[4]] * 2)
    assert fleet.leader.rejected == {"duplicate": 8, "quota": 9}
    assert len(fleet.leader.intake.letters.take()) == 8  # none of what is over a quota
    fleet.close_window()
    (release,) = fleet.store.written
    assert release.n == HOSTS - 1


def test_operator_cannot_fill_the_places_of_reports_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas())
    reports = honest_reports(world)
    size = len(reports[0].encode()) + 5
    monkeypatch.setattr("aggregator.leader.intake.PARKED_BYTES", 12 * size)
    unknown = [
        replace(report, epoch_id=EpochId(bytes([i]) * 16))
        for report in (reports[0], reports[1])
        for i in range(1, 5)
    ]
    fleet.send(unknown)  # an operator of two in twelve has a third of the places
    assert fleet.leader.rejected == {"quota": 4}
    fleet.send([replace(reports[5], epoch_id=EpochId(bytes(16)))])
    assert fleet.leader.rejected == {"quota": 4}
    fleet.send(reports)
    fleet.tick(window(1) + 31)  # frozen: nothing waits for it any more
    assert not fleet.leader.intake._parked_of[world.hosts[0].operator]


def test_dead_letters_say_where_and_why_and_hold_no_vector(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(dead_letters=DeadLetterQuota()))
    reports = honest_reports(world)
    forged = replace(reports[1], box=bytes(len(reports[1].box)))
    fleet.send([reports[0], b"no report", forged, reports[0]])
    letters = [json.loads(letter) for letter in fleet.leader.intake.letters.take()]
    assert [(letter["reason"], letter["offset"]) for letter in letters] == [
        ("length", 1),
        ("box", 2),
        ("duplicate", 3),
    ]
    assert all("host_id" not in letter and "record" not in letter for letter in letters)
    assert letters[1]["bytes"] == len(forged.encode()) + 5
    assert fleet.leader.intake.letters.take() == []
    assert fleet.leader.intake.letters.counts() == {"written": 3, "dropped": 0}


def test_dead_letter_names_who_sealed_a_report_that_found_no_room(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    quotas = Quotas(
        window_bytes=HOSTS * row_bytes(world) + 1, dead_letters=DeadLetterQuota(records=True)
    )
    fleet = fleet_with(world, tmp_path, quotas)
    fleet.send(some_reports(world, 0), window(1) + 1)
    fleet.send(some_reports(world, 1), window(1) + 2)
    first, *rest = (json.loads(letter) for letter in fleet.leader.intake.letters.take())
    assert first["host_id"] == world.hosts[0].id.hex()
    assert all("host_id" not in letter for letter in rest)
    assert {letter["reason"] for letter in (first, *rest)} == {Reason.OVERLOAD.value}
    assert "record" in first


def test_dead_letters_are_bounded_by_number_and_bytes(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(dead_letters=DeadLetterQuota(per_minute=3)))
    letters = fleet.leader.intake.letters
    fleet.send([b"no report"] * 10)
    assert len(letters.take()) == 3
    fleet.send([b"no report"] * 2, T0 + WINDOW_S + 62)
    assert len(letters.take()) == 2
    assert letters.counts() == {"written": 5, "dropped": 7}

    small = fleet_with(
        world, tmp_path / "small", Quotas(dead_letters=DeadLetterQuota(bytes_per_minute=4096))
    )
    small.send([b"no report"] * 100)
    taken = small.leader.intake.letters.take()
    assert sum(map(len, taken)) <= 4096 < sum(map(len, taken)) + 200


def test_dead_letters_lie_on_their_topic_and_expire_with_age(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    fleet = fleet_with(world, tmp_path, Quotas(dead_letters=DeadLetterQuota()))
    fleet.send([b"no report"])
    log = EmbeddedLog(tmp_path / "log", keep=KEPT)
    with log:
        publisher = LogPublisher(log, world.parties, letters=True)
        publisher.open()
        publisher.put_letters(fleet.leader.intake.letters)
        publisher.flush()
        consumer = log.consumer("reader-1", [DEAD_LETTERS])
        (record,) = consumer.poll(10, 1.0)
        assert json.loads(record.value)["reason"] == "length"
        consumer.close()
        publisher.close()
        assert log.purge(older_than_s=2**40) == 1
    assert {EPOCHS, REPORTS, DEAD_LETTERS}.isdisjoint(KEPT)


def test_topic_of_dead_letters_is_made_only_where_they_are_asked_for(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    log = EmbeddedLog(tmp_path / "log")
    with log:
        publisher = LogPublisher(log, world.parties)
        publisher.open()
        with pytest.raises(UnknownTopic):
            log.consumer("reader-1", [DEAD_LETTERS])
        publisher.close()
