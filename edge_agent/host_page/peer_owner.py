"""Whose socket a connection on loopback comes from, by the kernel's table: no secret is needed.
Scrapes of the agent ask here too, which loads nothing of the pages.
"""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Final

_TABLES: Final = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}
_WORD: Final = 4
_ESTABLISHED: Final = "01"
"""In every other state a socket may have lost its process, and the table then says root."""


def owner_of(
    client: tuple[str, int], server: tuple[str, int], table: Path | None = None
) -> int | None:
    """Give the user id of a connection's other end, by both ends; None: it cannot be told."""
    try:
        wanted = _written(client), _written(server), _ESTABLISHED
        table = table or _TABLES[ipaddress.ip_address(client[0]).version]
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except (OSError, ValueError):
        return None
    for line in lines:
        parts = line.split(maxsplit=8)
        if tuple(parts[1:4]) == wanted:
            return int(parts[7])
    return None


def _written(end: tuple[str, int]) -> str:
    """Write an end as the table does: words of the address as this machine's numbers, in hex."""
    packed = ipaddress.ip_address(end[0]).packed
    words = [packed[at : at + _WORD] for at in range(0, len(packed), _WORD)]
    address = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{address}:{end[1]:04X}"
