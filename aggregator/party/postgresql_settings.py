"""Where a party's own PostgreSQL database is, and as whom it connects."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from transport.settings.config import limited

from .channel_address import check_paths

DEFAULT_PORT: Final = 5432


@dataclass(frozen=True, slots=True)
class PostgresqlSettings:
    """The table [witness.postgresql] of a Helper, or [standby.postgresql] of a Leader.

    host            a name or address, or the folder of the server's Unix socket
    user            the party's own role, with the rights that its schema gives
    password_file   its password, alone in a file, 0600; None where certificate or socket is enough
    ca_file         PEM of who signed the server's certificate, which must name `host`; a must but
                    on a Unix socket
    cert_file       PEM of this client's certificate, with key_file, where the server asks for one
    """

    host: str = limited(form=r"\S+")
    database: str = limited("pointillist", form=r"\S+")
    user: str = limited("pointillist_helper", form=r"\S+")
    port: int = limited(DEFAULT_PORT, low=1, high=65_535)
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        check_paths(self)
        if self.on_socket != (self.ca_file is None):
            raise ValueError("expected ca_file beside a host, and none beside a socket's folder")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("expected both cert_file and key_file, or neither")
        if self.on_socket and self.cert_file is not None:
            raise ValueError("expected no cert_file beside a socket's folder")

    @property
    def on_socket(self) -> bool:
        """Whether the server is on this machine, which keeps others from the line."""
        return self.host.startswith("/")


def schema_sql(room: str) -> str:
    """The tables and rights that a database's owner makes once.

    room        of `aggregator` whose tables they are
    """
    path = resources.files("aggregator") / room / "postgresql.sql"
    return path.read_text(encoding="utf-8")
