"""Who leads of several machines: leases, terms and how the lead changes hands in PostgreSQL."""

from __future__ import annotations

import threading

import pytest

from aggregator.leader.leader_events import StoreTask
from aggregator.leader.leader_state import LeaderState
from aggregator.party.postgresql_database import DatabaseUnavailable
from aggregator.standby.leadership import RENEWALS, Leadership, Renewals, leader_database
from aggregator.state.state_file import LeadershipLost
from tests.postgresql_kit import PostgresqlServer
from tests.standby_kit import DATABASE, LEADER_PK, ROLE, LeaderDatabase
from tests.wait_kit import until

pytestmark = pytest.mark.postgresql
LEASE_S = 60.0
TASK = b"t" * 32
INSERT = "INSERT INTO tasks VALUES (?,?)"


@pytest.fixture
def database(postgresql_server: PostgresqlServer) -> LeaderDatabase:
    return LeaderDatabase(postgresql_server)


def follow(database: LeaderDatabase, other: Leadership) -> None:
    """Take the lead from who does not renew."""
    assert not other.take()
    database.pass_lease()
    assert other.take()


def test_lead_is_taken_from_who_is_silent_alone(database: LeaderDatabase) -> None:
    first, second = database.leadership(), database.leadership()
    assert first.take()
    assert not second.take()
    first.renew()
    database.pass_lease()
    assert not second.take()  # it sees that the first renewed, and begins to count
    database.pass_lease()
    assert second.take()
    assert second.own_term().fence == first.own_term().fence + 1
    with pytest.raises(LeadershipLost):
        first.renew()
    first.leave()  # it has nothing to leave
    second.renew()
    second.leave()
    assert first.take()  # it need not wait for one who left
    first.leave()


def test_lease_is_counted_in_full_from_when_its_renewal_was_seen(database: LeaderDatabase) -> None:
    first, second = database.leadership(LEASE_S), database.leadership(LEASE_S)
    assert first.take()
    database.pass_lease()
    assert not second.take()
    database.now_s += LEASE_S - 0.5
    assert not second.take()
    database.now_s += 0.5
    assert second.take()
    for each in (first, second):
        each.close()


def test_clock_of_the_database_set_back_delays_nobody(database: LeaderDatabase) -> None:
    first, second = database.leadership(), database.leadership()
    assert first.take()
    earlier = "RETURNS timestamptz LANGUAGE sql AS $$SELECT pg_catalog.now() - interval '1 day'$$"
    path = f"ALTER ROLE {ROLE} IN DATABASE {DATABASE}"
    clocks = ("clock_timestamp", "now")
    for name in clocks:
        database.psql(f"CREATE FUNCTION {name}() {earlier}")
    database.psql(f"{path} SET search_path = public, pg_catalog")
    try:
        follow(database, second)
    finally:
        database.psql(f"{path} RESET search_path")
        for name in clocks:
            database.psql(f"DROP FUNCTION public.{name}()")
    for each in (first, second):
        each.close()


class CountedRenewals(Leadership):
    """Says each time that it has renewed."""

    renewed: threading.Semaphore

    def renew(self) -> None:
        super().renew()
        self.renewed.release()


def test_renewals_wait_for_no_change_of_the_state(database: LeaderDatabase) -> None:
    lease_s = 1.0
    step_s = lease_s / RENEWALS
    held = CountedRenewals(leader_database(database.settings, step_s), LEADER_PK, lease_s)
    held.renewed = threading.Semaphore(0)
    assert held.take()
    tables = database.tables(held)
    tables._options = ""  # its change may stand still for as long as a slow machine takes
    with tables.transaction() as change:
        renewals = Renewals(held, held.renewed.release)
        change.execute(INSERT, (TASK, 2.0))
        for _ in range(RENEWALS + 1):
            assert held.renewed.acquire(timeout=60)
            assert renewals.lost == ""
    assert LeaderState(tables).accepted_s() == {TASK: 2.0}
    renewals.end()
    tables.close()


def test_lead_changes_hands_after_a_change_that_was_begun(database: LeaderDatabase) -> None:
    held, other = database.leadership(), database.leadership(timeout_s=0.2)
    assert held.take()
    state = LeaderState(database.tables(held))
    assert not other.take()
    database.pass_lease()
    with state._tables.transaction() as tables:
        tables.execute(INSERT, (TASK, 2.0))
        assert not other.take()
    assert state.accepted_s() == {TASK: 2.0}
    assert other.take()
    with pytest.raises(LeadershipLost):
        state.store_task(StoreTask(TASK, 3.0))
    for each in (state, held, other):
        each.close()


def test_machine_that_renews_while_it_is_followed_goes_on(database: LeaderDatabase) -> None:
    """Another has seen a lease without a renewal, and waits for a change that is being made."""
    held, other = database.leadership(), database.leadership(timeout_s=60.0)
    assert held.take()
    assert not other.take()
    database.pass_lease()
    tables = database.tables(held)
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(other.take()))
    with tables.transaction():
        thread.start()
        until(lambda: waiting(database) == "1")
        held.renew()
    thread.join()
    assert taken == [False]
    held.renew()
    with tables.transaction() as change:
        change.execute(INSERT, (TASK, 2.0))
    for each in (tables, held, other):
        each.close()


def test_machine_that_hangs_while_it_follows_keeps_no_renewal_waiting(
    database: LeaderDatabase,
) -> None:
    held, hung = database.leadership(), database.leadership(timeout_s=0.2)
    assert held.take()
    assert not hung.take()
    with hung.asking() as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE leadership SET fence = fence + 1")
        connection.execute("UPDATE lease SET holder = NULL")
    held.renew()
    for each in (held, hung):
        each.close()


def waiting(database: LeaderDatabase) -> str:
    return database.psql(
        "SELECT count(*) FROM pg_stat_activity"
        f" WHERE wait_event_type = 'Lock' AND usename = '{ROLE}'"
    )


def test_term_that_a_failover_lost_changes_nothing(database: LeaderDatabase) -> None:
    """Its fence is given once more, to another machine."""
    first, lost, newest = (database.leadership() for _ in range(3))
    assert first.take()
    database.psql("CREATE TABLE before_leadership AS TABLE leadership")
    database.psql("CREATE TABLE before_lease AS TABLE lease")
    follow(database, lost)
    tables = database.tables(lost)
    for name, columns in (("leadership", "fence, holder"), ("lease", "holder, renewal")):
        rolled_back = f"UPDATE {name} SET ({columns}) = (SELECT {columns} FROM before_{name})"
        database.psql(f"{rolled_back}; DROP TABLE before_{name}")
    with pytest.raises(LeadershipLost), tables.transaction():
        pass
    follow(database, newest)
    assert newest.own_term().fence == lost.own_term().fence
    with pytest.raises(LeadershipLost, match="expected fence 2, got another's 2"):
        LeaderState(tables).store_task(StoreTask(TASK, 1.0))
    with pytest.raises(LeadershipLost, match="lease of fence 2"):
        lost.renew()
    lost.leave()
    newest.renew()
    for each in (first, tables, newest):
        each.close()


class SilentDatabase(Leadership):
    """Its database answers no renewal."""

    def renew(self) -> None:
        raise DatabaseUnavailable("away")


def test_machine_whose_lease_runs_out_unanswered_stops(database: LeaderDatabase) -> None:
    silent = SilentDatabase(leader_database(database.settings, 1.0), b"p" * 32, 0.2)
    stopped = threading.Event()
    renewals = Renewals(silent, stopped.set)
    assert stopped.wait(60)
    assert renewals.lost == "away"
    renewals.end()
