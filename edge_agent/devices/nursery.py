"""A process that starts others, made before the agent opens its key: its children hold no key.

A child that hangs in a driver is killed and replaced while the agent runs. Forked from the agent,
the replacement would copy its memory, keys and all; forked from here it has what was there when
the nursery was made. Nothing here executes a file, so it also works after the agent has left root
and its interpreter's folder is closed to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Final

Task = Callable[[Connection], None]
"""What a child does with its end of the pipe; a function that can be pickled."""

_PR_SET_PDEATHSIG: Final = 1
_MOST_FD: Final = 1 << 16
_MOST_TASK_BYTES: Final = 1 << 16
_ANSWER_S: Final = 5.0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NurseryClosed(Exception):
    """The process that starts children is gone, and with it the way to a child without keys."""


class Child:
    """One child: its end of a pipe, and a descriptor that names it even when its pid is reused."""

    def __init__(self, pid: int, pidfd: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self._pidfd = pidfd

    def kill(self) -> None:
        """End it; a second call does nothing."""
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._pidfd = -1
        self.connection.close()


class Nursery:
    """Starts children on demand; ends with this process."""

    def __init__(self) -> None:
        """Fork the process: what is in memory now is in every child."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _die_with(parent)
                _keep_only(its.fileno())
                _tend(its)
            finally:
                os._exit(0)
        its.close()
        mine.settimeout(_ANSWER_S)
        self._socket = mine

    def start(self, task: Task) -> Child:
        """Give a new child that does the task.

        Raises      NurseryClosed
        """
        try:
            self._socket.send(pickle.dumps(task))
            answer, fds, _, _ = socket.recv_fds(self._socket, 8, 2)
        except OSError as error:
            raise NurseryClosed(f"no child can be started: {error}") from None
        if len(fds) != 2:
            raise NurseryClosed("no child can be started: the process that starts them ended")
        return Child(int.from_bytes(answer, "little"), fds[1], Connection(fds[0]))

    def close(self) -> None:
        """End it and all its children; a second call does nothing."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _die_with(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _keep_only(fd: int) -> None:
    """Close what the agent holds open: a lock must not outlive the agent in a hanging child."""
    os.closerange(3, fd)
    os.closerange(fd + 1, _MOST_FD)
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
                pickle.loads(message)(its)  # noqa: S301 - from the agent, on its own socket pair
            finally:
                os._exit(0)
        its.close()
        pidfd = os.pidfd_open(pid)
        mine.send(None)
        socket.send_fds(asked, [pid.to_bytes(8, "little")], [mine.fileno(), pidfd])
        os.close(pidfd)
        mine.close()
