"""Which machine of a Leader leads: rows of its database, of which whoever leads renews one.

Every change of the state reads `leadership` under a lock that a change of hands waits for, so what
an older Leader begins after it is refused; a renewal of `lease` waits for none. A renewal is a mark
that was never there before: a machine that stands by may lead when, by its own clock alone, one has
stayed for the length of a lease and is still there as it takes over.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import psycopg
import structlog

from aggregator.leader.leader_state import LeaderState
from aggregator.party.config import LeaderConfig, StandbySettings
from aggregator.party.health import Health, HealthMetric, Presence, process_document, write_status
from aggregator.party.postgresql_database import Database, DatabaseSession, DatabaseUnavailable
from aggregator.party.postgresql_settings import PostgresqlSettings
from aggregator.state import state_file
from aggregator.state.state_file import LeadershipLost, StatementRows, Statements, StateUnusable
from transport.files.keyfiles import load_signing_key
from transport.process.supervision import Notifier

SCHEMA_VERSION: Final = 1
RENEWALS: Final = 5
"""Times that a lease is renewed while it lasts; each step of asking takes no longer than one."""
MARK_BYTES: Final = 16

_LOOK: Final = "SELECT leader_pk, renewal FROM leadership, lease"
_TAKE_TERM: Final = """
UPDATE leadership SET leader_pk = %(leader)s, fence = fence + 1, holder = %(holder)s
WHERE coalesce(leader_pk, %(leader)s) = %(leader)s RETURNING fence
"""
_TAKE_LEASE: Final = """
UPDATE lease SET holder = %(holder)s, renewal = %(renewal)s
WHERE renewal IS NOT DISTINCT FROM %(seen)s
"""
_RENEW: Final = "UPDATE lease SET renewal = %s WHERE holder = %s"
_LEAVE: Final = "UPDATE lease SET holder = NULL, renewal = NULL WHERE holder = %s"


def leader_database(settings: PostgresqlSettings, timeout_s: float) -> Database:
    version = ("SELECT version FROM pointillist_leader", SCHEMA_VERSION)
    return Database(settings, "leader", timeout_s, version, "pointillist leader schema")


@dataclass(frozen=True, slots=True)
class Term:
    """One machine's time as the one that leads.

    fence       rises with each term; a database that loses commits gives a number twice
    holder      bytes[16], random: no other term has them
    """

    fence: int
    holder: bytes


class Leadership(DatabaseSession):
    """One machine's hold on the lead; used by one thread at a time."""

    def __init__(
        self,
        database: Database,
        leader_pk: bytes,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hold nothing.

        lease_s     after so many seconds without a renewal another machine may lead
        clock       of this machine alone, in seconds; never set
        """
        self._leader_pk, self.lease_s, self._clock = leader_pk, lease_s, clock
        # A machine that hangs while hands change holds both rows.
        super().__init__(
            database,
            f"-c lock_timeout={database.timeout_s * 500:.0f} "
            f"-c idle_in_transaction_session_timeout={database.timeout_s * 1000:.0f}",
        )
        self._seen, self._seen_s = b"", 0.0
        self._until_s = clock()
        self.term: Term | None = None

    @property
    def left_s(self) -> float:
        """Seconds, or less than none, until another machine may lead."""
        return self._until_s - self._clock()

    def take(self) -> bool:
        """Lead, if nobody does or this machine saw no renewal for the length of a lease.

        Raises      DatabaseUnavailable, OtherLeader
        """
        self.term, asked_s = None, self._clock()
        with self.asking() as connection:
            seen = self._look(connection)
            if seen is not None and seen != self._seen:
                self._seen, self._seen_s = seen, self._clock()
            # It was there a lease ago: from an answer then to a question now.
            if seen is None or asked_s - self._seen_s >= self.lease_s:
                self.term = self._change_hands(connection, seen)
        if self.term is not None:
            self._until_s = asked_s + self.lease_s
        return self.term is not None

    def _look(self, connection: psycopg.Connection[Any]) -> bytes | None:
        row = connection.execute(_LOOK).fetchone()
        if row is None:
            raise DatabaseUnavailable("leader: expected a row that says who leads, found none")
        leader_pk, renewal = row
        if leader_pk not in {None, self._leader_pk}:
            raise state_file.OtherLeader(
                f"expected the state of Leader {self._leader_pk.hex()}, "
                f"got that of {leader_pk.hex()}"
            )
        return None if renewal is None else bytes(renewal)

    def _change_hands(self, connection: psycopg.Connection[Any], seen: bytes | None) -> Term | None:
        """Follow whoever renewed last, once no change of the state runs; unless it renews."""
        holder, renewal = (secrets.token_bytes(MARK_BYTES) for _ in range(2))
        asked = {"leader": self._leader_pk, "holder": holder, "renewal": renewal, "seen": seen}
        fence = None
        with suppress(psycopg.errors.LockNotAvailable), connection.transaction() as change:
            row = connection.execute(_TAKE_TERM, asked).fetchone()
            if row is None or connection.execute(_TAKE_LEASE, asked).rowcount == 0:
                raise psycopg.Rollback(change)
            fence = int(row[0])
        return None if fence is None else Term(fence, holder)

    def renew(self) -> None:
        """Go on leading. Raises DatabaseUnavailable, LeadershipLost."""
        term, asked_s = self.own_term(), self._clock()
        with self.asking() as connection:
            renewal = secrets.token_bytes(MARK_BYTES)
            if connection.execute(_RENEW, (renewal, term.holder)).rowcount == 0:
                raise LeadershipLost(
                    f"expected the lease of fence {term.fence}, got none: another machine leads"
                )
        self._until_s = asked_s + self.lease_s

    def leave(self) -> None:
        term = self.own_term()
        with suppress(DatabaseUnavailable), self.asking() as connection:
            connection.execute(_LEAVE, (term.holder,))
        self.close()

    def own_term(self) -> Term:
        if self.term is None:
            raise ValueError("expected a machine that leads")
        return self.term


class Renewals:
    """Renews a lease from a thread; says once when it is over."""

    def __init__(self, held: Leadership, lost: Callable[[], None]) -> None:
        """Begin; the lease has just been taken.

        lost        called once, from the thread: this process must stop
        """
        self._held, self._tell = held, lost
        self._over, self.lost = threading.Event(), ""
        self._log = structlog.get_logger("leader")
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        every_s = self._held.lease_s / RENEWALS
        while not self.lost and not self._over.wait(every_s):
            try:
                self._held.renew()
            except DatabaseUnavailable as error:
                # Another try waits and asks: it must end while the lease lasts.
                late = self._held.left_s < 2 * every_s
                self.lost = str(error) if late else ""
            except LeadershipLost as error:
                self.lost = str(error)
        if self.lost:
            self._log.error("leadership lost", detail=self.lost)
            self._tell()

    def end(self) -> None:
        """Renew no more, and let another machine lead unless one does."""
        self._over.set()
        self._thread.join()
        if self.lost:
            self._held.close()
        else:
            self._held.leave()


_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
"""A connection that broke, or that the server ended; anything else is an error of ours."""
_TERM: Final = "SELECT fence, holder FROM leadership FOR SHARE"

READ_STEP_S: Final = 60.0
_NOBODYS: Final = Term(fence=0, holder=b"")


def tables_to_read(settings: StandbySettings) -> PostgresqlTables:
    """A Leader's tables beside whoever leads: every change is refused."""
    database = leader_database(settings.postgresql, READ_STEP_S)
    return PostgresqlTables(database, _NOBODYS, settings.lease_s)


class PostgresqlTables(DatabaseSession):
    """`StateTables` of one term; connects at the first statement, and again after a failure."""

    def __init__(self, database: Database, term: Term, lease_s: float) -> None:
        """Change nothing once another term has begun.

        lease_s     a transaction that stands still for so long is ended by the server: it would
                    keep others from leading
        """
        options = f"-c idle_in_transaction_session_timeout={int(lease_s * 1000)}"
        super().__init__(database, options, _AWAY)
        self._term = term

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> StatementRows:
        with self._storing() as connection:
            return connection.execute(_in_its_words(sql), values)

    @contextmanager
    def transaction(self) -> Iterator[Statements]:
        with self._storing() as connection, connection.transaction():
            row = connection.execute(_TERM).fetchone()
            if row != (self._term.fence, self._term.holder):
                found = "none" if row is None else f"another's {row[0]}"
                raise LeadershipLost(f"expected fence {self._term.fence}, got {found}")
            yield _InTransaction(connection)

    @contextmanager
    def _storing(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            with self.asking() as connection:
                yield connection
        except DatabaseUnavailable as error:
            raise state_file.StorageUnavailable("database", error) from error


class _InTransaction:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> StatementRows:
        return self._connection.execute(_in_its_words(sql), values)

    def executemany(self, sql: str, values: Iterable[Sequence[Any]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_in_its_words(sql), values)


def _in_its_words(sql: str) -> bytes:
    """A value is `?` in the state's SQL and `%s` here; no statement has either in a text."""
    return sql.replace("?", "%s").encode()


MEASURES: Final = (
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("standby", "standby", "1 while another machine leads"),
)
STATE_STEP_S: Final = 30.0
"""Of a change of the state: an hour's epochs of a fleet come at once."""


class Turn:
    """Waits until this machine leads, and says how it stands meanwhile."""

    def __init__(self, config: LeaderConfig, notifier: Notifier) -> None:
        """Read who this Leader is; connect to nothing.

        Raises      KeyFileRefused, StateUnusable: a state lies in a file already
        """
        if config.standby is None:
            raise ValueError("expected a Leader that has a table of a standby")
        left = config.state_dir / "leader.sqlite"
        if left.exists():
            raise StateUnusable(f"{left}: expected no file beside the database's state, found one")
        self._config, self._notifier = config, notifier
        self._settings = config.standby
        self._log = structlog.get_logger("leader")
        self._stop = Event()
        self._started_s = time.time()
        self.health = Health("leader", MEASURES)
        leader_pk = load_signing_key(config.key_dir / "identity.key").public_bytes
        step_s = self._settings.lease_s / RENEWALS
        database = leader_database(self._settings.postgresql, step_s)
        self._leadership = Leadership(database, leader_pk, self._settings.lease_s)
        self._trouble = ""
        self._lost = False
        self._stop_work: Callable[[], None] = self.stop

    def stop(self) -> None:
        self._stop.set()

    @property
    def leads(self) -> bool:
        """Whether the wait ended with the lead; a lease may have run out since."""
        return self._leadership.term is not None

    def wait(self) -> None:
        """Wait until this machine leads, or it is stopped. Raises OtherLeader."""
        self._notifier.ready("standing by")
        presence = Presence(self._config.status_file)
        try:
            while not self._take():
                self._say()
                if self._stop.wait(self._settings.lease_s / RENEWALS):
                    self._leadership.close()
                    return
        finally:
            presence.close()
        self._log.info("leads", fence=self._leadership.own_term().fence)

    def _take(self) -> bool:
        try:
            taken = self._leadership.take()
        except DatabaseUnavailable as error:
            if not self._trouble:
                self._log.warning("database away", detail=str(error))
            self._trouble = str(error)
            return False
        if self._trouble:
            self._log.warning("database is back")
        self._trouble = ""
        return taken

    def _say(self) -> None:
        now_s = int(time.time())
        troubles = {"storage": {"since": now_s, "detail": self._trouble}} if self._trouble else {}
        document = process_document(self._started_s, now_s) | {
            "ready": 0,
            "standby": 1,
            "troubles": troubles,
        }
        self.health.turned()
        self.health.document = document
        self._notifier.alive()
        write_status(self._config.status_file, document)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Renew the lease meanwhile. Raises LeadershipLost at its end, when the lease was over."""
        renewals = Renewals(self._leadership, self._lose)
        try:
            yield
        finally:
            renewals.end()
        if renewals.lost:
            raise LeadershipLost(renewals.lost)

    def on_loss(self, stop: Callable[[], None]) -> None:
        """Have this called once the lease is over, from any thread; now, if it is to stop."""
        self._stop_work = stop
        if self._lost or self._stop.is_set():
            stop()

    def _lose(self) -> None:
        self._lost = True
        self._stop_work()

    def state(self) -> LeaderState:
        database = leader_database(self._settings.postgresql, STATE_STEP_S)
        tables = PostgresqlTables(database, self._leadership.own_term(), self._settings.lease_s)
        return LeaderState(tables)
