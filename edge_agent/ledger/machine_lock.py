"""One agent spends a machine's budget: its process holds a name that the kernel keeps for the
network namespace, over containers that share the host's, and lets go however the process ends.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from transport.process.printable import printable
from transport.process.privileges import user_name

from .ledger_records import LedgerRefused

_NAME: Final = "\0pointillist/agent"
_CREDENTIALS: Final = struct.Struct("3i")
_ANSWER_S: Final = 2.0
_MOST_ANSWER: Final = 4096


class MachineTaken(LedgerRefused):
    """Another agent spends this machine's budget: two ledgers would each spend a whole one."""

    code = "machine_taken"
    recovery = "end one of the two agents"


class MachineLock:
    """Holds this machine's budget from `take` until the process ends, or `close`."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._socket: socket.socket | None = None

    def take(self) -> None:
        """Take it, once. Raises MachineTaken: another process has it."""
        if self._socket is not None:
            return
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            held.bind(_NAME)
            held.listen()
        except OSError as error:
            held.close()
            taken = error.errno == errno.EADDRINUSE
            found = f"spent by {_holder()}" if taken else f"not to be had: {error.strerror}"
            raise MachineTaken(f"this machine's budget is {found}") from None
        self._socket = held
        Thread(target=self._tell, args=(held,), daemon=True).start()

    def _tell(self, held: socket.socket) -> None:
        """Tell whoever asks where the ledger lies."""
        while True:
            try:
                asking = held.accept()[0]
            except OSError:
                return
            with asking, suppress(OSError):
                asking.setblocking(False)
                asking.send(os.fsencode(self._state_dir))

    def close(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait for whoever asks
            self._socket.close()
        self._socket = None


def _holder() -> str:
    """Name the process that has it: what the kernel says of it, and what it says itself."""
    told = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_ANSWER_S)
            asking.connect(_NAME)
            packed = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, uid, _ = _CREDENTIALS.unpack(packed)
            with suppress(OSError):
                told = asking.recv(_MOST_ANSWER)
    except OSError:
        return "another process, which does not answer"
    where = printable(os.fsdecode(told)) or "a folder that it does not tell"
    return f"the agent of {where}, {f'pid {pid}' if pid else 'in a container'}, of {user_name(uid)}"
