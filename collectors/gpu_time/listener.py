"""The socket at which libraries in GPU processes report: they hand over memory, and get leases.

Strangers' rows are bounded: one takes some 2 kB here, all of them stay near 200 MB.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from .segment import ProcessSegment, SegmentError

MOST_PROCESSES: Final = 256
"""Each takes two descriptors, of which a process may have 1,024 unless it is given more."""
MOST_ROWS: Final = 3 << 15
"""Of all processes: GPU programs have some hundreds to 2,000, and 4,096 at most."""
NAMES_OF_A_ROW: Final = 512
MOST_READ: Final = 1 << 13
"""Rows that one drain reads, some 60 us each; who is not reached is read in the next."""
MOST_LEARNT: Final = 512
"""New names that one drain learns, up to 1 ms each; a process is told of when all of its are."""
MOST_TAKEN: Final = 16
"""Processes that are taken in at once; the others wait at the socket."""


class Held(NamedTuple):
    uid: int
    rows: int
    names_bytes: int = 0

    @property
    def weight(self) -> int:
        return self.rows + self.names_bytes // NAMES_OF_A_ROW


def has_room(held: Iterable[Held], more: Held) -> bool:
    """Tell whether one more process fits: nobody but root takes more than half of what there is."""
    every = [*held, more]
    own = [one for one in every if one.uid == more.uid]
    return _fits(every, 1) and (more.uid == 0 or _fits(own, 2))


def _fits(held: list[Held], part: int) -> bool:
    rows = sum(one.weight for one in held)
    return part * len(held) <= MOST_PROCESSES and part * rows <= MOST_ROWS


MAGIC: Final = 0x4C475450
VERSION: Final = 1
HELLO: Final = struct.Struct("<IIiI")
LEASE: Final = struct.Struct("<IIIIII")
MOST_CONNECTIONS: Final = 1024
_CREDENTIALS: Final = struct.Struct("<iII")


class ConnectionRefusal(StrEnum):
    FULL = "full"
    HELLO = "hello"
    VERSION = "version"
    MEMORY = "memory"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What a process is asked to do: record `on_ms` of every `period_ms`.

    on_ms        0 to period_ms
    period_ms    10 to 60,000
    most         records of a period after which no more are made in it; 0: without end
    """

    on_ms: int
    period_ms: int
    most: int = 0

    def __post_init__(self) -> None:
        fits = 10 <= self.period_ms <= 60_000 and 0 <= self.on_ms <= self.period_ms
        if not fits or not 0 <= self.most < 1 << 32:
            raise ValueError(f"expected a period of 10 to 60,000 ms, a part of it on, got {self}")

    def lease(self, milliseconds: int) -> bytes:
        """Encode a lease of this plan, 1 to 60,000 ms long."""
        return LEASE.pack(MAGIC, VERSION, milliseconds, self.on_ms, self.period_ms, self.most)


class Reporter:
    """One process whose library reports.

    pid, uid   as the kernel has them, in this process's namespaces
    """

    def __init__(
        self, connection: socket.socket, pid: int, uid: int, segment: ProcessSegment
    ) -> None:
        self._connection, self.pid, self.uid, self.segment = connection, pid, uid, segment

    def lease(self, plan: WindowPlan, milliseconds: int) -> bool:
        try:
            self._connection.send(plan.lease(milliseconds))
        except BlockingIOError:
            return True  # it reads the newest in its own time
        except OSError:
            return False
        return True

    def gone(self) -> bool:
        try:
            return not self._connection.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Let it go: it stops recording at once."""
        self._connection.close()
        self.segment.close()


def try_out(path: Path) -> None:
    """Listen beside a path, which a running agent may hold, and cease. Raises OSError."""
    Listener(path.with_name(f".{os.getpid()}")).close()


class Listener:
    def __init__(self, path: Path) -> None:
        """Bind. Raises OSError."""
        self._path = path
        if path.is_socket():
            path.unlink()
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            self._socket.bind(str(path))
            path.chmod(0o666)
            self._socket.listen(64)
        except OSError:
            self._socket.close()
            raise
        self._inode = path.stat().st_ino
        self.refused: Counter[ConnectionRefusal] = Counter()

    def close(self) -> None:
        """Stop listening; the path of who has listened there since stays."""
        with contextlib.suppress(OSError):
            if self.reached():
                self._path.unlink()
        self._socket.close()

    def reached(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def accept(self, room: int = MOST_PROCESSES) -> Iterator[Reporter]:
        for _ in range(MOST_CONNECTIONS):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:
                self.refused[ConnectionRefusal.SYSTEM] += 1
                return
            reporter = _greet(connection) if room > 0 else ConnectionRefusal.FULL
            if isinstance(reporter, ConnectionRefusal):
                self.refused[reporter] += 1
                connection.close()
            else:
                room -= 1
                yield reporter


def _greet(connection: socket.socket) -> Reporter | ConnectionRefusal:
    """Read the hello; who has not sent it yet tries again later."""
    connection.setblocking(False)
    descriptors: list[int] = []
    try:
        said, descriptors, _, _ = socket.recv_fds(
            connection, HELLO.size + 1, 4, socket.MSG_CMSG_CLOEXEC
        )
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if len(said) != HELLO.size or len(descriptors) != 1:
            return ConnectionRefusal.HELLO
        magic, version, _, _ = HELLO.unpack(said)
        if (magic, version) != (MAGIC, VERSION):
            return ConnectionRefusal.VERSION
        return Reporter(connection, pid, uid, ProcessSegment(descriptors[0]))
    except SegmentError:
        return ConnectionRefusal.MEMORY
    except (OSError, ValueError):
        return ConnectionRefusal.SYSTEM
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
