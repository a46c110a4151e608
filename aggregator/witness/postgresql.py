"""A witness in a PostgreSQL database: an append-only table whose constraints compare and set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from aggregator.party.postgresql_database import Database, DatabaseUnavailable
from aggregator.party.postgresql_settings import PostgresqlSettings
from wire.fields import MAX_COUNTER, MAX_TIME
from wire.witness import NO_LINKS, ChainHead, ChainLink

from .chain import WitnessUnavailable

SCHEMA_VERSION: Final = 1
_VERSION: Final = ("SELECT version FROM pointillist_witness", SCHEMA_VERSION)
_LEADERS: Final = "SELECT FROM pg_roles WHERE rolname = 'pointillist_leader'"
"""A role that a Leader's own tables want; a server has it for all of its databases."""
_SCHEMA_COMMAND: Final = "pointillist witness schema"
_HASH_BYTES: Final = 32
_INSERT: Final = (
    "INSERT INTO pointillist_links (helper_pk, sequence, prev, closed_s, kind, item) "
    "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
)
_HEAD: Final = (
    "SELECT sequence, hash, closed_s FROM pointillist_links WHERE helper_pk = %s "
    "ORDER BY sequence DESC LIMIT 1"
)


class PostgresqlWitness:
    """One Helper's chain in a database."""

    def __init__(self, settings: PostgresqlSettings, helper_pk: bytes, timeout_s: float) -> None:
        """Connect at the first question, and again after each failure.

        timeout_s   of each step: to connect, and to carry a question out
        """
        self._helper_pk = helper_pk
        self._database = Database(settings, "witness", timeout_s, _VERSION, _SCHEMA_COMMAND)
        self._connection: psycopg.Connection[Any] | None = None

    def head(self) -> ChainHead:
        with self._asking() as connection:
            return self._head(connection)

    def append(self, link: ChainLink) -> ChainHead:
        with self._asking() as connection:
            # Its place is taken, or what it follows is not there: the head says so.
            with suppress(psycopg.errors.IntegrityError):
                connection.execute(
                    _INSERT,
                    (
                        *(link.helper_pk, link.sequence, link.prev),
                        *(link.closed_s, link.kind, link.item),
                    ),
                )
            return self._head(connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _head(self, connection: psycopg.Connection[Any]) -> ChainHead:
        row = connection.execute(_HEAD, (self._helper_pk,)).fetchone()
        if row is None:
            return NO_LINKS
        sequence, digest, closed_s = row
        if (
            not (type(sequence) is int and 1 <= sequence <= MAX_COUNTER)
            or not (type(closed_s) is int and 0 <= closed_s <= MAX_TIME)
            or not (isinstance(digest, bytes) and len(digest) == _HASH_BYTES)
        ):
            raise WitnessUnavailable("witness: expected a head of the chain, got other columns")
        return ChainHead(sequence, digest, closed_s)

    @contextmanager
    def _asking(self) -> Iterator[psycopg.Connection[Any]]:
        """Give the connection for one question, bounded in time; raises WitnessUnavailable."""
        try:
            fresh = self._connection is None
            self._connection = self._connection or self._database.connect()
            with self._database.bounded(self._connection):
                if fresh and self._connection.execute(_LEADERS).fetchone() is not None:
                    raise WitnessUnavailable(
                        "witness: expected a server that is not the Leader's, found its role "
                        "pointillist_leader there"
                    )
                yield self._connection
        except psycopg.Error as error:
            self.close()
            raise WitnessUnavailable(str(self._database.away(error))) from error
        except DatabaseUnavailable as error:
            raise WitnessUnavailable(str(error)) from error
        except WitnessUnavailable:
            self.close()
            raise
