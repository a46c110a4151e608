"""The socket at which libraries in GPU processes report: they hand over memory, and get leases."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .segment import Segment, SegmentError

MAGIC: Final = 0x4C475450
VERSION: Final = 1
HELLO: Final = struct.Struct("<IIiI")
LEASE: Final = struct.Struct("<IIIIII")
MOST_PROCESSES: Final = 1024
_CREDENTIALS: Final = struct.Struct("<iII")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process is asked to do: record `on_ms` of every `period_ms`.

    on_ms        0 to period_ms
    period_ms    10 to 60,000
    most       records of a period after which no more are made in it; 0: without end
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

    def __init__(self, connection: socket.socket, pid: int, uid: int, segment: Segment) -> None:
        self._connection, self.pid, self.uid, self.segment = connection, pid, uid, segment

    def lease(self, plan: Plan, milliseconds: int) -> bool:
        """Ask for a plan; False when the process is gone."""
        try:
            self._connection.send(plan.lease(milliseconds))
        except BlockingIOError:
            return True  # it reads the newest in its own time
        except OSError:
            return False
        return True

    def gone(self) -> bool:
        """Tell whether the process has closed the connection; it never says a second thing."""
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


class Listener:
    """Listens at a path that every user may connect to."""

    def __init__(self, path: Path) -> None:
        """Bind. Raises OSError."""
        self._path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._socket.bind(str(path))
        path.chmod(0o666)
        self._socket.listen(64)
        self.refused: dict[str, int] = {}
        """Connections that were turned away, by reason."""

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def accept(self) -> Iterator[Reporter]:
        """Take who waits."""
        for _ in range(MOST_PROCESSES):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            reporter = self._greet(connection)
            if reporter is not None:
                yield reporter

    def _greet(self, connection: socket.socket) -> Reporter | None:
        """Read the hello, which was sent before the connection was taken."""
        connection.setblocking(False)
        descriptors: list[int] = []
        try:
            said, descriptors, _, _ = socket.recv_fds(connection, HELLO.size + 1, 4)
            pid, uid, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if len(said) != HELLO.size or len(descriptors) != 1:
                raise SegmentError("expected a hello with one descriptor")
            magic, version, _, _ = HELLO.unpack(said)
            if (magic, version) != (MAGIC, VERSION):
                raise SegmentError(f"expected a library of version {VERSION}, got {version}")
            return Reporter(connection, pid, uid, Segment(descriptors[0]))
        except (OSError, SegmentError, ValueError) as error:
            reason = str(error) if isinstance(error, SegmentError) else type(error).__name__
            self.refused[reason] = self.refused.get(reason, 0) + 1
            connection.close()
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
