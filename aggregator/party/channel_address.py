"""Where a channel between two processes lies: a Unix socket, or host:port with TLS files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from transport.settings.config import limited, optional_address

DEFAULT_MESSAGE_BYTES: Final = 64 << 20
DEFAULT_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Mutual TLS: the CA that signed the other side, and the own certificate with its key."""

    ca_file: Path
    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Where a party listens: a Unix socket, or host:port with TLS files.

    max_message_bytes   of one message; a batch has 72 B a host, a share 4 B a word
    """

    socket: Path | None = None
    host_port: str = ""
    tls: TlsFiles | None = None
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES
    call_timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ChannelTable:
    socket: Path | None = None
    address: str = limited("", read=optional_address)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        check_paths(self)
        files = (self.ca_file, self.cert_file, self.key_file)
        wanted = None not in files if self.address else files == (None, None, None)
        if (self.socket is None) == (not self.address) or not wanted:
            raise ValueError("expected either socket, or address with ca_file, cert_file, key_file")

    def bounded(self, max_message_bytes: int, call_timeout_s: float) -> ChannelAddress:
        tls = None
        if self.ca_file and self.cert_file and self.key_file:
            tls = TlsFiles(self.ca_file, self.cert_file, self.key_file)
        return ChannelAddress(self.socket, self.address, tls, max_message_bytes, call_timeout_s)


def check_paths(table: Any) -> None:
    for key in fields(table):
        path = getattr(table, key.name)
        if isinstance(path, Path) and not path.is_absolute():
            raise ValueError(f"{key.name}: expected an absolute path, got {path}")
