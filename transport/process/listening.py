"""Places to listen at: where loopback is, and what keeps an address from being taken."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .printable import printable
from .privileges import user_name

LOOPBACKS: Final = ("127.0.0.1", "::1")
_LISTENS: Final = "0A"
_TABLES: Final = ("tcp", "tcp6")


class AddressUnavailable(OSError):
    """An address that cannot be listened on, and who has it; `hint`: what picks another."""

    def __init__(self, number: int, found: str, hint: str) -> None:
        super().__init__(number, found)
        self.hint = hint

    def __str__(self) -> str:
        return str(self.strerror)


def loopback() -> str:
    """Give this machine's own address: 127.0.0.1, or ::1 where loopback has no IPv4."""
    for address in LOOPBACKS:
        try:
            with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
        except OSError:
            continue
        return address
    return LOOPBACKS[0]


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def at(host: str, port: int) -> str:
    """Write an address as people and URLs do: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int, choose: str, backlog: int) -> socket.socket:
    """Listen on a numeric address; port 0 takes a free one. Raises AddressUnavailable."""
    try:
        return socket.create_server((host, port), family=family_of(host), backlog=backlog)
    except OSError as error:
        raise refusal(error, host, port, choose) from error


def why_not(host: str, port: int, choose: str) -> AddressUnavailable | None:
    """Say what keeps a host's name or address from being listened on; None where nothing does."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
    except OSError as error:
        return refusal(error, host, port, choose)
    return None


def refusal(error: OSError, host: str, port: int, choose: str) -> AddressUnavailable:
    """Say why an address cannot be listened on; `choose`: what picks another."""
    number, why = error.errno or 0, error.strerror or str(error)
    place = at(host, port)
    if number == errno.EADDRINUSE:
        found = f"{place} is taken: {holder(port) or 'another program'} listens there"
        return AddressUnavailable(number, found, f"end that, or take another: {choose}")
    if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
        found = f"{place}: {host} is no address of this machine"
        return AddressUnavailable(number, found, f"`ip address` lists them: {choose}")
    if number in {errno.EACCES, errno.EPERM}:
        found = f"{place}: this user may not listen on port {port}"
        return AddressUnavailable(number, found, f"take a port from 1024 on: {choose}")
    return AddressUnavailable(number, f"{place} cannot be listened on: {why}", choose)


def holder(port: int) -> str:
    """Name who listens on a port, as far as the kernel tells this user; "" where it does not."""
    sockets = dict(_listening(port))
    held = {f"socket:[{inode}]": user for inode, user in sockets.items()}
    for entry in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        try:
            user = held[str(entry.readlink())]
            command = (entry.parents[1] / "comm").read_text(encoding="utf-8", errors="replace")
        except (OSError, KeyError):
            continue  # another socket, another user's process, or gone
        name = printable(command.strip())
        return f"process {entry.parents[1].name} ({name}) of user {user}"
    return next((f"a process of user {user}" for user in sockets.values()), "")


def _listening(port: int) -> Iterator[tuple[str, str]]:
    """Give inode and user of each socket that listens on a port."""
    for table in _TABLES:
        try:
            lines = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, user, _, inode, *_ = line.split()
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                yield inode, user_name(int(user))
