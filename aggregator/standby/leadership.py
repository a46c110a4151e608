"""Which machine of a Leader leads: rows of its database, of which whoever leads renews one.

`leadership` says whose term it is, and changes when the lead changes hands. Every change of the
state reads it under a lock that the change of hands waits for: what an older Leader begins after it
is refused. `lease` is renewed, and no change of the state touches it: a renewal waits for none.

A renewal is a mark that was never there before. A machine that stands by counts by its own clock
how long the mark stays: after the length of a lease it may lead, if the mark is still there when it
takes over. No other clock counts, the database's neither, and of two that follow one does.

A Leader's state in a PostgreSQL database, changed by whoever leads alone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from aggregator.party.config import StandbySettings
from aggregator.party.postgresql_database import Database, DatabaseSession, DatabaseUnavailable
from aggregator.party.postgresql_settings import PostgresqlSettings
from aggregator.state import state_file
from aggregator.state.state_file import LeadershipLost, StatementRows, Statements

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
            if seen is None or self._stays(seen, asked_s):
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

    def _stays(self, seen: bytes, asked_s: float) -> bool:
        """Whether it was there a lease ago: from an answer then to a question now."""
        if seen != self._seen:
            self._seen, self._seen_s = seen, self._clock()
        return asked_s - self._seen_s >= self.lease_s

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
        """Go on leading.

        Raises      DatabaseUnavailable, LeadershipLost
        """
        term, asked_s = self.own_term(), self._clock()
        with self.asking() as connection:
            renewal = secrets.token_bytes(MARK_BYTES)
            if connection.execute(_RENEW, (renewal, term.holder)).rowcount == 0:
                raise LeadershipLost(
                    f"expected the lease of fence {term.fence}, got none: another machine leads"
                )
        self._until_s = asked_s + self.lease_s

    def leave(self) -> None:
        """Let another machine lead at once; as far as the database answers."""
        term = self.own_term()
        with suppress(DatabaseUnavailable), self.asking() as connection:
            connection.execute(_LEAVE, (term.holder,))
        self.close()

    def own_term(self) -> Term:
        """The term of this machine, which has taken the lead."""
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
