"""Addresses as files and people say them: `host:port`."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Final

_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]")
_PORT: Final = re.compile("[1-9][0-9]{0,4}")
_SCHEMES: Final = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds")
"""What gRPC takes for the kind of an address, not for a host's name."""


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
