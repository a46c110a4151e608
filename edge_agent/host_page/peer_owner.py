"""Whose socket a connection on loopback comes from, as the kernel says.

A port on loopback is open to every user of the machine, and the agent's files are not. The kernel's
table of sockets names the user of each: so no secret is needed, which a process list could show.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

TABLE: Final = Path("/proc/net/tcp")
_ESTABLISHED: Final = "01"
"""In every other state a socket may have lost its process, and the table then says root."""


def owner_of(client: tuple[str, int], server: tuple[str, int], table: Path = TABLE) -> int | None:
    """Give the user id of the other end of a connection; None where it cannot be told.

    client, server   IPv4 address and port of both ends, as this process sees them
    """
    try:
        wanted = _written(client), _written(server), _ESTABLISHED
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return None
    for line in lines:
        parts = line.split(maxsplit=8)
        if tuple(parts[1:4]) == wanted:
            return int(parts[7])
    return None


def _written(end: tuple[str, int]) -> str:
    """Write an end as the table does: the address as a number of this machine, hexadecimal."""
    packed = ipaddress.IPv4Address(end[0]).packed
    return f"{int.from_bytes(packed, 'little'):08X}:{end[1]:04X}"
