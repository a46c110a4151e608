"""Addresses as files, people and requests say them: `host:port`."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Final

from transport.process.listening import loopback

_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]")
_PORT: Final = re.compile("[1-9][0-9]{0,4}")
_SCHEMES: Final = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds")
"""What gRPC takes for the kind of an address, not for a host's name."""
OWN_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names by which a page of this machine's own is asked for: another site whose name is made to lead
here is none of them."""


class ListenRefused(ValueError):
    """An address that cannot be listened on as it was asked for; says what is missing."""


def host_port(value: Any) -> str:
    """Give an address as it came.

    Raises      ValueError where it is not a host's name or address, and a port
    """
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        raise ValueError(f"expected host:port, got {json.dumps(value, default=str)[:80]}")
    return str(value)


def channel_address(value: Any) -> str:
    """Give the address of a channel as it came.

    Raises      ValueError where it is no host:port, or gRPC would take it for another kind
    """
    host = host_port(value).rpartition(":")[0]
    if host.lower() in _SCHEMES:
        raise ValueError(
            f"expected host:port with a host's name or address, got {json.dumps(value)}, which is "
            "another kind of address to gRPC"
        )
    return str(value)


def optional_address(value: Any) -> str:
    """Give the address of a channel, or empty text where there is none. Raises ValueError."""
    return "" if value == "" else channel_address(value)


def host_name(value: str) -> str:
    """Give the host of `host` or `host:port`.

    Raises      ValueError
    """
    if _HOST.fullmatch(value):
        return value
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        pass
    try:
        return host_port(value).rpartition(":")[0]
    except ValueError:
        said = json.dumps(value)[:80]
        raise ValueError(f"expected a host's name or address, got {said}") from None


def asked_name(header: str) -> str:
    """Give the name of a Host header without its port, lower case; IPv6 in its brackets."""
    name = header.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def listen_address(text: str, port: int, names: str = "") -> tuple[str, int]:
    """Read HOST:PORT, HOST or :PORT; IPv6 stands in brackets.

    port        where none is said
    names       what is said of a host's name, which cannot be listened on
    Returns     a numeric address, loopback where no host is said or `localhost` is
    Raises      ListenRefused
    """
    host, _, said = text.rpartition(":") if ":" in text.removeprefix("[").partition("]")[2] or (
        ":" in text and "[" not in text
    ) else (text, "", "")  # fmt: skip
    host = host.removeprefix("[").removesuffix("]")
    number = port if not said else int(said) if said.isascii() and said.isdecimal() else -1
    if not 0 <= number <= 65_535 or (":" in host and "[" not in text):
        raise ListenRefused(f"--listen: expected HOST:PORT ([::1]:{port} for IPv6), got {text!r}")
    if host in {"", "localhost"}:
        return loopback(), number
    if not is_address(host):
        raise ListenRefused(
            f"--listen: expected an address of this machine, such as 127.0.0.1:{port} or "
            f"[::1]:{port}, got {text!r}{names}"
        )
    return host, number


def is_address(host: str) -> bool:
    """Say whether it is a numeric address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
