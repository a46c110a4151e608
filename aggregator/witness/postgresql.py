"""A witness in a PostgreSQL database: an append-only table whose constraints compare and set."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from aggregator.channel import read_private
from transport.keyfiles import KeyFileRefused
from wire.bounds import MAX_COUNTER, MAX_TIME
from wire.witness import NO_LINKS, ChainHead, ChainLink

from .port import WitnessUnavailable
from .postgresql_settings import PostgresqlSettings

SCHEMA_VERSION: Final = 1
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
        self._settings, self._helper_pk, self._timeout_s = settings, helper_pk, timeout_s
        self._connection: psycopg.Connection[Any] | None = None

    def head(self) -> ChainHead:
        """Say where the chain stands."""
        with self._asking() as connection:
            return self._head(connection)

    def append(self, link: ChainLink) -> ChainHead:
        """Take a link if it continues the chain; say where the chain stands then."""
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
        """Let go of the connection."""
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
        """Give the connection for one question, bounded in time.

        Raises      WitnessUnavailable
        """
        try:
            if self._connection is None:
                self._connection = self._connect()
            with _bounded(self._connection, self._timeout_s):
                yield self._connection
        except psycopg.Error as error:
            self.close()
            raise WitnessUnavailable(_said(error)) from error
        except WitnessUnavailable:
            self.close()
            raise

    def _connect(self) -> psycopg.Connection[Any]:
        settings = self._settings
        connection = psycopg.connect(
            "",
            autocommit=True,
            host=settings.host,
            port=settings.port,
            dbname=settings.database,
            user=settings.user,
            password=self._password(),
            connect_timeout=max(2, math.ceil(self._timeout_s)),  # libpq takes no less
            application_name="pointillist helper",
            # A standby may be behind, and takes nothing.
            target_session_attrs="read-write",
            **_tls(settings),
        )
        try:
            with _bounded(connection, self._timeout_s):
                _check_server(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _password(self) -> str | None:
        """Read the password, anew at each connection: it may have been changed."""
        path = self._settings.password_file
        if path is None:
            return None
        try:
            return read_private(path).decode().removesuffix("\n")
        except (OSError, KeyFileRefused, UnicodeDecodeError) as error:
            why = "no text" if isinstance(error, UnicodeDecodeError) else str(error)
            raise WitnessUnavailable(f"password_file: {why}") from None


def _tls(settings: PostgresqlSettings) -> Mapping[str, Any]:
    """What libpq takes for it: every setting named, so that no environment adds one."""
    if settings.on_socket:
        return {"sslmode": "disable", "gssencmode": "disable"}
    named: dict[str, Any] = {
        "sslmode": "verify-full",
        "sslrootcert": str(settings.ca_file),
        "ssl_min_protocol_version": "TLSv1.2",
        "gssencmode": "disable",
        # Not libpq's own places in somebody's home.
        "sslcert": str(settings.cert_file or os.devnull),
        "sslkey": str(settings.key_file or os.devnull),
    }
    return named if settings.cert_file else named | {"sslcertmode": "disable"}


def _check_server(connection: psycopg.Connection[Any]) -> None:
    """Refuse a server that forgets what it took, and tables of another version.

    Raises      WitnessUnavailable
    """
    for setting in ("fsync", "synchronous_commit"):
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        if row is None or row[0] in {"off", "local"}:
            raise WitnessUnavailable(f"witness: expected a server with {setting}, got it without")
    try:
        row = connection.execute("SELECT version FROM pointillist_witness").fetchone()
    except psycopg.errors.UndefinedTable as error:
        raise WitnessUnavailable(
            "witness: expected the tables of `pointillist witness schema`, found none"
        ) from error
    if row is None or row[0] != SCHEMA_VERSION:
        found = "no mark" if row is None else str(row[0])[:20]
        raise WitnessUnavailable(
            f"witness: expected tables of version {SCHEMA_VERSION}, got {found}"
        )


@contextmanager
def _bounded(connection: psycopg.Connection[Any], timeout_s: float) -> Iterator[None]:
    """End the connection unless the block ends in time: a server that hangs says nothing at all."""

    def cut() -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
            line.shutdown(socket.SHUT_RDWR)

    descriptor = os.dup(connection.fileno())
    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        os.close(descriptor)


def _said(error: psycopg.Error) -> str:
    """The server's first line; it may name users, databases and addresses, no measurement."""
    lines = str(error).strip().splitlines()
    return f"witness: expected an answer of PostgreSQL, got {lines[0] if lines else type(error)}"
