"""Connections to a party's own PostgreSQL database: bounded in time, over TLS or a Unix socket."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from transport.files.keyfiles import KeyFileRefused

from .channel import read_private
from .postgresql_settings import PostgresqlSettings


class DatabaseUnavailable(Exception):
    """A database is away, refuses, or is not what it should be; the message says what came."""


@dataclass(frozen=True, slots=True)
class Database:
    """A database that one part of a party uses.

    name        of what is kept there, for messages
    timeout_s   of each step: to connect, and to carry a question out
    version     query of the version of the tables, and what it should give
    schema      the command that prints the tables
    """

    settings: PostgresqlSettings
    name: str
    timeout_s: float
    version: tuple[str, int]
    schema: str

    def connect(self, options: str = "") -> psycopg.Connection[Any]:
        """Connect, every transaction by its own, and see that the server keeps what it took.

        options     settings of the session, as `postgres -c` takes them
        Raises      DatabaseUnavailable
        """
        try:
            connection = self._open(options)
            try:
                with self.bounded(connection):
                    self._check(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise self.away(error) from error
        return connection

    def _open(self, options: str) -> psycopg.Connection[Any]:
        settings = self.settings
        return psycopg.connect(
            "",
            autocommit=True,
            host=settings.host,
            port=settings.port,
            dbname=settings.database,
            user=settings.user,
            password=self._password(),
            connect_timeout=max(2, math.ceil(self.timeout_s)),  # libpq takes no less
            application_name=f"pointillist {self.name}",
            options=options,
            # A standby may be behind, and takes nothing.
            target_session_attrs="read-write",
            **_tls(settings),
        )

    def _password(self) -> str | None:
        """Read the password, anew at each connection: it may have been changed."""
        path = self.settings.password_file
        if path is None:
            return None
        try:
            return read_private(path).decode().removesuffix("\n")
        except (OSError, KeyFileRefused, UnicodeDecodeError) as error:
            why = "no text" if isinstance(error, UnicodeDecodeError) else str(error)
            raise DatabaseUnavailable(f"password_file: {why}") from None

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a server that forgets what it took, and tables of another version.

        Raises      DatabaseUnavailable
        """
        for setting in ("fsync", "synchronous_commit"):
            row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
            if row is None or row[0] in {"off", "local"}:
                raise DatabaseUnavailable(
                    f"{self.name}: expected a server with {setting}, got it without"
                )
        query, version = self.version
        try:
            row = connection.execute(query.encode()).fetchone()
        except psycopg.errors.UndefinedTable as error:
            raise DatabaseUnavailable(
                f"{self.name}: expected the tables of `{self.schema}`, found none"
            ) from error
        if row is None or row[0] != version:
            found = "no mark" if row is None else str(row[0])[:20]
            raise DatabaseUnavailable(
                f"{self.name}: expected tables of version {version}, got {found}"
            )

    @contextmanager
    def bounded(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """End the connection unless the block ends in time: a server that hangs says nothing."""

        def cut() -> None:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
                line.shutdown(socket.SHUT_RDWR)

        descriptor = os.dup(connection.fileno())
        timer = threading.Timer(self.timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            os.close(descriptor)

    def away(self, error: psycopg.Error) -> DatabaseUnavailable:
        """Say the server's first line; it may name users and addresses, no measurement."""
        lines = str(error).strip().splitlines()
        said = lines[0] if lines else type(error)
        return DatabaseUnavailable(f"{self.name}: expected an answer of PostgreSQL, got {said}")


class DatabaseSession:
    def __init__(
        self,
        database: Database,
        options: str = "",
        failures: tuple[type[psycopg.Error], ...] = (psycopg.Error,),
    ) -> None:
        """Connect later; any error that is none of `failures` is ours."""
        self.database, self._options, self._failures = database, options, failures
        self._connection: psycopg.Connection[Any] | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def asking(self) -> Iterator[psycopg.Connection[Any]]:
        """Give the connection for one question, bounded in time. Raises DatabaseUnavailable."""
        try:
            if self._connection is None:
                self._connection = self.database.connect(self._options)
            with self.database.bounded(self._connection):
                yield self._connection
        except self._failures as error:
            self.close()
            raise self.database.away(error) from error


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
