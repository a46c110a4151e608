"""Which machine of a Leader leads: a row of its database, renewed by whoever does.

Time is the database's alone: who did not renew for as long as the lease lasts may be followed. A
fence that rises with each change of hands is read in every change of the state, under a lock that
the change of hands waits for: what an older Leader begins after it is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
import structlog

from aggregator.leader_tables import LeadershipLost, OtherLeader
from aggregator.postgresql_database import Database, DatabaseUnavailable
from aggregator.postgresql_settings import PostgresqlSettings

SCHEMA_VERSION: Final = 1
RENEWALS: Final = 5
"""Times that a lease is renewed while it lasts; each step of asking takes no longer than one."""

_TAKE: Final = """
INSERT INTO leadership VALUES (1, %(leader)s, 1, clock_timestamp())
ON CONFLICT (one) DO UPDATE SET fence = leadership.fence + 1, renewed = clock_timestamp()
WHERE leadership.leader_pk = %(leader)s
    AND leadership.renewed < clock_timestamp() - make_interval(secs => %(lease_s)s)
RETURNING fence
"""
_RENEW: Final = "UPDATE leadership SET renewed = clock_timestamp() WHERE fence = %s RETURNING fence"
_LEAVE: Final = "UPDATE leadership SET renewed = '-infinity' WHERE fence = %s"
_WHOSE: Final = "SELECT leader_pk FROM leadership"


def leader_database(settings: PostgresqlSettings, timeout_s: float) -> Database:
    """The database of a Leader's state."""
    version = ("SELECT version FROM pointillist_leader", SCHEMA_VERSION)
    return Database(settings, "leader", timeout_s, version, "pointillist leader schema")


class Leadership:
    """One machine's hold on the lead; used by one thread at a time."""

    def __init__(self, database: Database, leader_pk: bytes, lease_s: float) -> None:
        """Hold nothing.

        lease_s     after so many seconds without a renewal another machine may lead
        """
        self._database, self._leader_pk, self.lease_s = database, leader_pk, lease_s
        self._connection: psycopg.Connection[Any] | None = None
        self.fence = 0

    def take(self) -> bool:
        """Lead, if nobody has renewed for the length of a lease.

        Raises      DatabaseUnavailable, OtherLeader
        """
        asked = {"leader": self._leader_pk, "lease_s": self.lease_s}
        with self._asking() as connection:
            taken = connection.execute(_TAKE, asked).fetchone()
            whose = connection.execute(_WHOSE).fetchone()
        if whose is None or whose[0] != self._leader_pk:
            found = "nobody" if whose is None else bytes(whose[0]).hex()
            raise OtherLeader(
                f"expected the state of Leader {self._leader_pk.hex()}, got that of {found}"
            )
        self.fence = 0 if taken is None else int(taken[0])
        return taken is not None

    def renew(self) -> None:
        """Go on leading.

        Raises      DatabaseUnavailable, LeadershipLost
        """
        with self._asking() as connection:
            if connection.execute(_RENEW, (self.fence,)).fetchone() is None:
                raise LeadershipLost(f"expected fence {self.fence}, got another: a newer one leads")

    def leave(self) -> None:
        """Let another machine lead at once; as far as the database answers."""
        with suppress(DatabaseUnavailable), self._asking() as connection:
            connection.execute(_LEAVE, (self.fence,))
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            if self._connection is None:
                self._connection = self._database.connect()
            with self._database.bounded(self._connection):
                yield self._connection
        except psycopg.Error as error:
            self.close()
            raise self._database.away(error) from error


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
        until_s = time.monotonic() + self._held.lease_s
        while not self.lost and not self._over.wait(every_s):
            asked_s = time.monotonic()
            try:
                self._held.renew()
                until_s = asked_s + self._held.lease_s
            except DatabaseUnavailable as error:
                # Another try waits and asks: it must end while the lease lasts.
                late = time.monotonic() + 2 * every_s > until_s
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
