"""What a running agent says: the live view on a Unix socket of this user and root, and its log."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final

import structlog

from transport.process import supervision

MOST_BYTES: Final = 4 << 20
_ANSWERS_PER_STEP: Final = 4
_SEND_S: Final = 0.05
"""A reader that does not take its answer in this time gets none: the agent's loop goes on."""
_CREDENTIALS: Final = struct.Struct("3i")


class LiveSocket:
    """Answers each connection with one JSON document, from the agent's own loop: no thread."""

    def __init__(self, path: Path) -> None:
        """Listen. Raises OSError."""
        self._path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with _short_name(path) as name:
                self._socket.bind(name)
            path.chmod(0o600)
            self._socket.listen(_ANSWERS_PER_STEP)
            self._socket.setblocking(False)
            self._inode = path.stat().st_ino
        except OSError:
            self._socket.close()
            raise

    def serve(self, view: Callable[[], Iterable[str]]) -> int:
        """Answer who waits; give how many. The view's pieces are made only when asked for."""
        answer: bytes | None = None
        served = 0
        for _ in range(_ANSWERS_PER_STEP):
            try:
                peer, _address = self._socket.accept()
            except OSError:
                break
            with peer:
                if _uid_of(peer) not in {os.geteuid(), 0}:
                    continue
                answer = answer or b"".join(piece.encode() for piece in view())
                peer.settimeout(_SEND_S)
                with contextlib.suppress(OSError):
                    peer.sendall(answer)
                    served += 1
        return served

    def close(self) -> None:
        """Stop listening; the path of who has listened there since stays."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._socket.close()


class LiveClient:
    """Asks for one view after the other and never waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._received = bytearray()

    def poll(self) -> dict[str, Any] | None:
        """Give the next view when it has come. Raises OSError when no agent listens."""
        if self._socket is None:
            self._ask()
            return None
        while True:
            try:
                part = self._socket.recv(1 << 16)
            except BlockingIOError:
                return None
            except OSError:
                self.close()
                raise
            if not part:
                return self._answer()
            self._received += part
            if len(self._received) > MOST_BYTES:
                self.close()
                raise OSError(f"expected at most {MOST_BYTES} bytes from {self._path}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._received = bytearray()

    def _ask(self) -> None:
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            asking.setblocking(False)
            with _short_name(self._path) as name:
                asking.connect(name)
        except OSError:
            asking.close()
            raise
        self._socket = asking

    def _answer(self) -> dict[str, Any] | None:
        received = bytes(self._received)
        self.close()
        try:
            found = json.loads(received) if received else None
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


@contextlib.contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """A socket's name has 107 bytes: reach it through its folder's descriptor."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _uid_of(peer: socket.socket) -> int:
    packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


LEVELS: Final = ("debug", "info", "warning", "error")


class LevelGate:
    """Drops lines below the level; set `level` at any time, for loggers made before as well."""

    def __init__(self, level: str = "info") -> None:
        self.level = level

    def __call__(
        self, _logger: object, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        rank = LEVELS.index(method) if method in LEVELS else len(LEVELS)
        if rank < LEVELS.index(self.level):
            raise structlog.DropEvent
        return line


def log_to_stderr(level: str = "info") -> LevelGate:
    """Write lines to stderr; give the gate that holds the level."""
    gate = LevelGate(level)
    supervision.log_to_stderr(gate)
    return gate
