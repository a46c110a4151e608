"""A Leader's state in a PostgreSQL database, changed by whoever leads alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from aggregator.party.postgresql_database import Database, DatabaseUnavailable
from aggregator.party.standby_settings import StandbySettings
from aggregator.state.state_file import StorageUnavailable
from aggregator.state.state_tables import LeadershipLost, StatementRows, Statements

from .leadership import Term, leader_database

_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
"""A connection that broke, or that the server ended; anything else is an error of ours."""
_TERM: Final = "SELECT fence, holder FROM leadership FOR SHARE"

READ_STEP_S: Final = 60.0
_NOBODYS: Final = Term(fence=0, holder=b"")


def tables_to_read(settings: StandbySettings) -> PostgresqlTables:
    """A Leader's tables beside whoever leads: every change is refused."""
    database = leader_database(settings.postgresql, READ_STEP_S)
    return PostgresqlTables(database, _NOBODYS, settings.lease_s)


class PostgresqlTables:
    """`StateTables` of one term; connects at the first statement, and again after a failure."""

    def __init__(self, database: Database, term: Term, lease_s: float) -> None:
        """Change nothing once another term has begun.

        lease_s     a transaction that stands still for so long is ended by the server: it would
                    keep others from leading
        """
        self._database, self._term = database, term
        self._options = f"-c idle_in_transaction_session_timeout={int(lease_s * 1000)}"
        self._connection: psycopg.Connection[Any] | None = None

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> StatementRows:
        """Read."""
        with self._asking() as connection:
            return connection.execute(_in_its_words(sql), values)

    @contextmanager
    def transaction(self) -> Iterator[Statements]:
        """Change, if this process still leads."""
        with self._asking() as connection, connection.transaction():
            row = connection.execute(_TERM).fetchone()
            if row != (self._term.fence, self._term.holder):
                found = "none" if row is None else f"another's {row[0]}"
                raise LeadershipLost(f"expected fence {self._term.fence}, got {found}")
            yield _InTransaction(connection)

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            if self._connection is None:
                self._connection = self._database.connect(self._options)
            with self._database.bounded(self._connection):
                yield self._connection
        except _AWAY as error:
            self.close()
            raise StorageUnavailable("database", self._database.away(error)) from error
        except DatabaseUnavailable as error:
            raise StorageUnavailable("database", error) from error


class _InTransaction:
    """Statements of one transaction."""

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
