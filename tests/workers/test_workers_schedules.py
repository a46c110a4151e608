"""Seeded schedules of faults: whatever happens to workers, the release is one process's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator.leader.leader_events import EpochsArrived
from tests.protocol_kit import T0, WINDOW_S, World, build_world, honest_reports, open_epochs
from tests.workers_kit import PARTITIONS, OneProcess, WorkersFleet, what_came
from wire.envelope import Kind
from wire.topics import REPORTS

SEEDS = range(10)
WINDOWS = 4
HOSTS = 14
STEPS = 40
"""Of each window; one in three is a fault."""


class Schedule:
    """One random order of reports, turns, ticks and faults."""

    def __init__(self, world: World, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = world
        for name in ("workers", "one"):
            (folder / name).mkdir()
        self.fleet = WorkersFleet(world, folder / "workers")
        self.other = OneProcess(world, folder / "one")
        for _ in range(self.random.randint(1, 4)):
            self.fleet.add_worker()
        self.fleet.divide_evenly()
        self.faults: list[Callable[[], None]] = [
            self.kill_worker, self.add_worker, self.divide_anew, self.lose_words,
            self.restart_coordinator, self.log_away, self.deliver_twice,
        ]  # fmt: skip
        self.done: list[str] = []

    # Faults

    def kill_worker(self) -> None:
        if len(self.fleet.workers) > 1:
            self.fleet.kill(self.random.choice(sorted(self.fleet.workers)))

    def add_worker(self) -> None:
        if len(self.fleet.workers) < 5:
            self.fleet.add_worker()

    def divide_anew(self) -> None:
        names = sorted(self.fleet.workers)
        self.fleet.divide({part: self.random.choice(names) for part in range(PARTITIONS)})

    def lose_words(self) -> None:
        way = self.fleet.ways[self.random.choice(sorted(self.fleet.ways))]
        way.lose = self.random.choices(["word", "answer", ""], k=3)

    def restart_coordinator(self) -> None:
        self.fleet.restart_leader()

    def log_away(self) -> None:
        self.fleet.group.away = not self.fleet.group.away

    def deliver_twice(self) -> None:
        """A group whose commit was set back: everything since is read again."""
        for slot in self.fleet.group.committed:
            self.fleet.group.committed[slot] = 0

    # Play

    def play(self) -> None:
        self.give_epochs(self.world.hosts[: HOSTS // 2])
        for number in range(WINDOWS):
            self.window(T0 + number * WINDOW_S, last=number == WINDOWS - 1)
            if number == 0:
                self.give_epochs(self.world.hosts[HOSTS // 2 :])
        self.calm_down(T0 + WINDOWS * WINDOW_S)

    def give_epochs(self, hosts: list) -> None:  # type: ignore[type-arg]
        for party in (self.fleet, self.other):
            records = [party.epoch_log.append(Kind.EPOCH, h.epoch.encode()) for h in hosts]
            party.feed(EpochsArrived(records, party.clock()))

    def window(self, window: int, *, last: bool) -> None:
        del last
        at_s = window + WINDOW_S + 1
        for party in (self.fleet, self.other):
            party.clock.now_s = at_s
        raw = [one.encode() for one in honest_reports(self.world, window=window)]
        raw += self.random.choices(raw, k=4)
        self.random.shuffle(raw)
        for _ in range(STEPS):
            if raw and self.random.random() < 0.6:
                report = raw.pop()
                self.fleet.group.append(Kind.REPORT, report, report[:16])
            elif self.random.random() < 0.3:
                fault = self.random.choice(self.faults)
                self.done.append(fault.__name__)
                fault()
            elif self.random.random() < 0.1:
                self.fleet.tick(at_s)
            elif self.fleet.workers:
                self.fleet.turn(self.random.choice(sorted(self.fleet.workers)))
        for report in raw:
            self.fleet.group.append(Kind.REPORT, report, report[:16])
        seen = getattr(self, "_seen", 0)
        self.other.read(self.fleet.group.in_order[seen:])
        self._seen = len(self.fleet.group.in_order)

    def calm_down(self, end_s: int) -> None:
        fleet = self.fleet
        fleet.group.away = False
        if not fleet.workers:
            fleet.add_worker()
        fleet.divide_evenly()
        for way in fleet.ways.values():
            way.lose = []
        # A coordinator that was restarted gives hosts the time to send again.
        for step in range(8):
            fleet.quiesce(4)
            for party in (fleet, self.other):
                party.tick(end_s + 30 + 20 * step)


@pytest.fixture(scope="module")
def world() -> World:
    made = build_world(HOSTS)
    open_epochs(made)
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule_releases_what_one_process_does(
    world: World, tmp_path: Path, seed: int
) -> None:
    schedule = Schedule(world, tmp_path, seed)
    schedule.play()
    expected = what_came(schedule.other)
    assert len(expected) == WINDOWS
    assert what_came(schedule.fleet) == expected, schedule.done
    # Nothing is read a second time once every window has ended.
    schedule.fleet.quiesce()
    ends = [len(records) for records in schedule.fleet.group.records]
    committed = schedule.fleet.group.committed
    assert [committed.get((REPORTS, part), 0) for part in range(PARTITIONS)] == ends
