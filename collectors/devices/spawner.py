"""A process that starts others, made before the agent opens its key: its children hold no key.

A child that hangs in a driver is killed and replaced while the agent runs. Forked from the agent,
the replacement would copy its memory, keys and all; forked from here it has what was there when
the spawner was made, and none of the agent's capabilities: with them a driver's library could
read the agent's memory through the kernel. Nothing here executes a file, so it also works after
the agent has left root and its interpreter's folder is closed to it.

A driver that was taken over must not reach the agent by what its child answers either: a pickle
that may name any function would give it the agent all the same, so answers are values alone.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import signal
import socket
import struct
import weakref
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

from transport.process.foreign import libc
from transport.process.privileges import give_up_capabilities, held_descriptors

MOST_BYTES: Final = 4 << 20
"""Of one answer: 1,024 processes with their control groups take a fourth of it."""
_KINDS: Final = {
    "collectors.devices.device_port": frozenset({
        "DeviceReading", "DevicesUnavailable", "Field", "Inventory", "Partition", "ProcessUse",
    }),
    "collectors.records.gap": frozenset({"Gap", "GapKind"}),
    "collectors.devices.bandwidth": frozenset({"Bandwidth"}),
}  # fmt: skip


class AnswerRefused(Exception):
    """A child sent what is no answer: says what was expected and what came."""


def receive(connection: Connection) -> object:
    """Take the next answer. Raises AnswerRefused, EOFError, OSError."""
    raw = connection.recv_bytes(MOST_BYTES)
    try:
        return _Answers(io.BytesIO(raw)).load()
    except AnswerRefused:
        raise
    except Exception as error:  # noqa: BLE001 (unpickling hostile bytes raises anything)
        raise AnswerRefused(f"expected an answer, got {type(error).__name__}") from None


class _Answers(pickle.Unpickler):  # noqa: S301 - only what is named below
    def find_class(self, module: str, name: str) -> Any:
        if name in _KINDS.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # how some Pythons write a member of an enumeration
        raise AnswerRefused(f"expected a reading, got {module}.{name}")


def _member(kind: object, name: object) -> Enum:
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(name, str):
        return kind.__members__[name]
    raise AnswerRefused("expected a member of an enumeration")


Task = Callable[[Connection], None]
"""What a child does with its end of the pipe; a function that can be pickled."""

PR_SET_PDEATHSIG: Final = 1
_MOST_FD: Final = 1 << 16
_MOST_TASK_BYTES: Final = 1 << 16
_NUMBER: Final = struct.Struct("<QQ")
ANSWER_S: Final = 5.0
"""How long a child may take to be there: a host out of memory swaps for seconds."""
_PART_S: Final = 2
"""How long the rest of a message may take: a child that sends half of one must not hold us."""
_TIMEVAL: Final = struct.Struct("ll")


class SpawnerClosed(Exception):
    """The process that starts children is gone, and with it the way to a child without keys."""


class Child:
    """One child: its end of a pipe, and a descriptor that names it even when its pid is reused."""

    def __init__(self, pid: int, pidfd: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self._pidfd = pidfd
        with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
            for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                pipe.setsockopt(socket.SOL_SOCKET, limit, _TIMEVAL.pack(_PART_S, 0))

    def kill(self) -> None:
        """End it; a second call does nothing."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        self.connection.close()


class Spawner:
    """Starts children on demand; ends with this process."""

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        """Fork the process: what is in memory now is in every child."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                give_up_capabilities()
                _die_with(parent)
                _keep_only(its.fileno())
                _tend(its)
            finally:
                os._exit(0)
        its.close()
        mine.settimeout(answer_s)
        self._socket = mine
        self._asked = 0
        self._end = weakref.finalize(self, _end, mine, self.pid, parent)
        self._end.atexit = False  # it ends with this process by itself

    def start(self, task: Task) -> Child:
        """Give a new child that does the task.

        Raises      SpawnerClosed
        """
        self._asked += 1
        try:
            self._socket.send(_NUMBER.pack(self._asked, 0) + pickle.dumps(task))
            while True:
                number, child = self._next()
                if number == self._asked:
                    return child
                child.kill()  # of a call that did not wait for it
        except OSError as error:
            raise SpawnerClosed(f"no child can be started: {error}") from None

    def _next(self) -> tuple[int, Child]:
        flags = socket.MSG_CMSG_CLOEXEC
        answer, fds, _, _ = socket.recv_fds(self._socket, _NUMBER.size, 2, flags)
        if len(fds) != 2:
            raise SpawnerClosed("no child can be started: the process that starts them ended")
        number, pid = _NUMBER.unpack(answer)
        return number, Child(pid, fds[1], Connection(fds[0]))

    def close(self) -> None:
        """End it and all its children, as dropping it does; a second call does nothing."""
        self._end()


def _end(mine: socket.socket, pid: int, owner: int) -> None:
    mine.close()
    if os.getpid() != owner:
        return  # a copy of the object, in a child
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _die_with(parent: int) -> None:
    libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _keep_only(fd: int) -> None:
    """Close what the agent holds open, but for its code.

    A lock must not outlive the agent in a hanging child.
    """
    kept = sorted({2, fd, *held_descriptors(), _MOST_FD})
    for below, above in pairwise(kept):
        os.closerange(below + 1, above)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent decides when a child ends
    # Files of the agent's objects are closed above; collected, an object would close its number
    # once more, which by then is another file's.
    gc.freeze()


def _tend(asked: socket.socket) -> None:
    """Start a child for each task until the agent closes its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects children that end
    while message := asked.recv(_MOST_TASK_BYTES):
        mine, its = Pipe()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _die_with(me)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _keep_only(its.fileno())
                its.recv()  # not before the agent's descriptor of this process is open
                task = pickle.loads(message[_NUMBER.size :])  # noqa: S301 - the agent's own
                task(its)
            finally:
                os._exit(0)
        its.close()
        pidfd = os.pidfd_open(pid)
        mine.send(None)
        number, _ = _NUMBER.unpack_from(message)
        socket.send_fds(asked, [_NUMBER.pack(number, pid)], [mine.fileno(), pidfd])
        os.close(pidfd)
        mine.close()
