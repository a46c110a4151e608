"""A Leader's state in PostgreSQL: what a file keeps, changed by whoever leads alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.leader.leader_events import (
    KeepEpochs,
    ReportsArrived,
    StoreCountersigned,
    StoreFrozen,
    StoreSuppressed,
    StoreTask,
    StoreUnsigned,
)
from aggregator.leader.leader_state import LeaderState
from aggregator.protocol.epochs import AdmittedEpoch, KnownEpoch
from aggregator.protocol.interfaces import BatchKey
from aggregator.standby.leadership import Leadership
from aggregator.state.state_file import (
    LeadershipLost,
    OtherLeader,
    StateUnusable,
    StorageUnavailable,
)
from tests.postgresql_kit import PostgresqlServer
from tests.protocol_kit import T0, WINDOW_S, World, build_world, honest_reports, open_epochs
from tests.reader_kit import OneProcess, give_epochs, learn, what_came
from tests.standby_kit import LeaderDatabase

pytestmark = pytest.mark.postgresql
HOSTS, WINDOWS = 10, 3
TASK = b"t" * 32


@pytest.fixture
def database(postgresql_server: PostgresqlServer) -> LeaderDatabase:
    return LeaderDatabase(postgresql_server)


def led(database: LeaderDatabase) -> tuple[Leadership, LeaderState]:
    """Take the lead from whoever has it."""
    held = database.leadership()
    if not held.take():
        database.pass_lease()
        assert held.take()
    return held, LeaderState(database.tables(held))


class TwoMachines(OneProcess):
    """A Leader on two machines; each start of it is on the other, and nobody is told to end."""

    database: LeaderDatabase

    def open_state(self) -> LeaderState:
        self.held, state = led(self.database)
        return state

    def restart_leader(self) -> None:
        self.start_leader()
        learn(self)
        self.feed(ReportsArrived(self.log.uncommitted(), self.clock()))


def play(fleet: OneProcess, change_hands: bool) -> None:
    """Windows in each of which hands change between reports and batch, and before the release."""
    give_epochs(fleet)
    for number in range(WINDOWS):
        window = T0 + number * WINDOW_S
        fleet.send(honest_reports(fleet.world, window=window), window + WINDOW_S + 1)
        before = fleet.runner
        if change_hands:
            fleet.restart_leader()
        fleet.close_window(window)
        assert fleet.runner is not before or not change_hands
        fleet.tick(fleet.clock() + 60)  # one that was restarted gives hosts the time to send again
    fleet.tick(fleet.clock() + 5)


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def test_machines_that_change_hands_release_what_one_does_bit_for_bit(
    database: LeaderDatabase, world: World, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = OneProcess(world, tmp_path / "one")
    play(one, change_hands=False)
    TwoMachines.database = database
    two = TwoMachines(world, tmp_path / "two")
    play(two, change_hands=True)
    assert two.held.own_term().fence == 1 + WINDOWS
    assert len(what_came(one)) == WINDOWS
    assert what_came(two) == what_came(one)
    assert dict(two.state.counts()) == dict(one.state.counts())
    for fleet in (one, two):
        fleet.state.close()


def test_machine_that_was_followed_changes_nothing(
    database: LeaderDatabase, world: World, tmp_path: Path
) -> None:
    """It froze a batch, hung, and wakes up: neither its batch nor its release comes to be."""
    TwoMachines.database = database
    fleet = TwoMachines(world, tmp_path)
    older = fleet.state
    fleet.restart_leader()
    with pytest.raises(LeadershipLost, match="expected fence 1, got another's 2"):
        older.store_task(StoreTask(TASK, 1.0))
    assert fleet.state.accepted_s().keys() == {world.task_id}
    older.close()
    fleet.state.close()


def test_state_of_another_leader_is_refused(database: LeaderDatabase) -> None:
    held, state = led(database)
    other = database.leadership(leader_pk=b"o" * 32)
    with pytest.raises(OtherLeader, match=f"expected the state of Leader {'6f' * 32}"):
        other.take()
    for each in (held, other):
        each.close()
    state.close()


def test_database_that_went_away_is_waited_for_but_not_in_the_midst_of_an_event(
    database: LeaderDatabase,
) -> None:
    held, state = led(database)
    held.close()
    database.server.stop()
    try:
        with pytest.raises(StorageUnavailable, match="database"):
            state.store_task(StoreTask(TASK, 1.0))
        with pytest.raises(StateUnusable):
            state.raw_epoch(b"n" * 32)
    finally:
        database.server.start()
    state.store_task(StoreTask(TASK, 1.0))
    assert state.accepted_s() == {TASK: 1.0}
    state.close()


SCRIPT: list[Callable[[LeaderState], Any]] = [
    lambda s: s.resumed,
    lambda s: s.keep_epochs(KeepEpochs([epoch(1), epoch(2)])),
    lambda s: s.keep_epochs(KeepEpochs([epoch(1, dead=True, ctr=9)])),
    lambda s: s.keep_epochs(KeepEpochs([epoch(1, ctr=3)])),  # neither alive again nor counted back
    lambda s: s.resumed,
    lambda s: sorted(s.epochs()),
    lambda s: sorted(s.counters().items()),
    lambda s: s.raw_epoch(b"\1" * 32),
    lambda s: s.raw_epoch(b"\3" * 32),
    lambda s: s.prune(5_000.0, 100),
    lambda s: sorted(s.epochs()),
    lambda s: s.store_task(StoreTask(TASK, 5.0)),
    lambda s: s.store_task(StoreTask(TASK, 6.0)),
    lambda s: s.accepted_s(),
    *(lambda s, at=at: s.store_frozen(frozen(at)) for at in (60, 60, 120, 180)),
    lambda s: s.store_suppressed(suppressed(60, b"")),
    lambda s: s.store_suppressed(suppressed(240, None)),
    *(lambda s, at=at: s.store_release(released(at)) for at in (120, 120, 180)),
    lambda s: s.unsigned(),
    lambda s: s.store_unsigned(StoreUnsigned(key(120), "refused")),
    lambda s: s.store_countersigned(StoreCountersigned(key(180), b"both signed")),
    lambda s: (s.releases(), s.unsigned(), s.counts(), s.last_ended(), s.closed()),
    lambda s: [(final.cohort, final.entry) for final in s.to_publish(9)],
    lambda s: s.published(s.to_publish(1)[0]),
    lambda s: [final.entry for final in s.to_publish(9)],
    lambda s: (set(s.settled(61.0)), s.last_batches()),
    lambda s: s.prune(8e5, 100),
    lambda s: (s.last_batches(), s.counts()),
]


def key(window: int) -> BatchKey:
    return BatchKey(TASK, 3, window)


def frozen(window: int) -> StoreFrozen:
    return StoreFrozen(key(window), "minute", b"batch %d" % window, window + 90.5, {"tag": 2})


def suppressed(window: int, share: bytes | None) -> StoreSuppressed:
    return StoreSuppressed(key(window), "minute", None, "n_min", 1.5, 4, share_bytes=share)


def released(window: int) -> Any:
    """What a state takes of a release."""
    return SimpleNamespace(key=key(window), share_bytes=b"s", entry=b"signed", vector=b"v")


def epoch(number: int, *, dead: bool = False, ctr: int = 5) -> AdmittedEpoch:
    name = bytes([number]) * 16
    known = KnownEpoch(name, name, name * 2, 1000, 4000 * number, ctr, dead)
    header: Any = SimpleNamespace(ledger_ctr=ctr)
    return AdmittedEpoch(known, header, b"raw %d" % number, twin=dead)


def test_database_says_of_a_state_what_a_file_does(
    database: LeaderDatabase, tmp_path: Path
) -> None:
    held, kept = led(database)
    file = LeaderState(tmp_path / "leader.sqlite")
    assert [step(kept) for step in SCRIPT] == [step(file) for step in SCRIPT]
    for state in (kept, file):
        state.close()
    held.close()
