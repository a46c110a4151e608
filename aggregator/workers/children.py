"""Processes that a party begins after it gave root up, by way of one that was made early.

The fork server is forked while the party has one thread, no connection and no secret in memory; it
forks workers whenever it is asked. So a worker that fell can be replaced while the party's threads
run, also where the code lies in a folder that a new Python could not enter. A worker's end of its
pipe is its life line: when the party is gone, however it went, the pipe ends and the worker does.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from threading import Event, Lock, Thread
from typing import Any, Final

import structlog

_MOST_JOB_BYTES: Final = 1 << 16
_FAILED: Final = 1
_LOOK_S: Final = 0.5
AGAIN_S: Final = 1.0
"""A worker that fell is followed by another after this pause."""
_END_S: Final = 10.0

Work = Callable[..., None]
"""A function of a module, which takes its end of the pipe and the arguments of its job."""


class ForkServer:
    """The process that forks workers."""

    def __init__(self) -> None:
        """Fork it; call it while this process has no other thread."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _in_child(lambda: _tend(theirs))
        theirs.close()
        self._line, self._lock = ours, Lock()

    def begin(self, work: Work, arguments: Sequence[Any]) -> Connection:
        """Have a worker begin a job; gives the party's end of its pipe.

        arguments   are pickled, and hold no secret
        Raises      OSError when the fork server is gone
        """
        ours, theirs = Pipe()
        job = pickle.dumps((work, tuple(arguments)))
        if len(job) > _MOST_JOB_BYTES:
            raise ValueError(f"job: expected at most {_MOST_JOB_BYTES} bytes, got {len(job)}")
        with theirs, self._lock:
            socket.send_fds(self._line, [job], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End it; workers end with their pipes."""
        self._line.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _tend(line: socket.socket) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it and what it forks end with the party
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker
    while True:
        job, descriptors, _flags, _address = socket.recv_fds(line, _MOST_JOB_BYTES, 1)
        if not job:
            return
        try:
            child = os.fork()
        except OSError:  # the machine has no room now: who asked sees its pipe end, and asks again
            child = None
        if child == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work, arguments = pickle.loads(job)  # noqa: S301 (our own party's)
            pipe = Connection(descriptors[0])
            _in_child(partial(work, pipe, *arguments))
        os.close(descriptors[0])


def _in_child(work: Callable[[], None]) -> None:
    """Do what a forked process is for, and end without what its parent would do at its end."""
    code = _FAILED
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001 (whatever it is, it ends here)
        traceback.print_exc()
    finally:
        os._exit(code)


class Children:
    """Several workers at the same job; one that falls is followed by another."""

    def __init__(
        self, fork_server: ForkServer, count: int, work: Work, arguments: Sequence[Any]
    ) -> None:
        """Begin them."""
        self._fork_server, self._work, self._arguments = fork_server, work, arguments
        self._log = structlog.get_logger("workers")
        self._again_s = [0.0] * count
        self._pipes = [self._begin() for _ in range(count)]

    def _begin(self) -> Connection:
        return self._fork_server.begin(self._work, self._arguments)

    def look(self) -> None:
        """Replace those that fell; call it now and then. A pipe that says something has ended.

        Raises      OSError when the fork server is gone
        """
        now_s = time.monotonic()
        over = wait(self._pipes, timeout=0)
        for place, pipe in enumerate(self._pipes):
            if pipe in over and not self._again_s[place]:
                self._again_s[place] = now_s + AGAIN_S
                self._log.error("worker fell", place=place)
            elif pipe in over and now_s >= self._again_s[place]:
                self._again_s[place] = 0.0
                self._pipes[place] = self._begin()
                pipe.close()

    def end(self) -> None:
        """Have all of them end."""
        for pipe in self._pipes:
            with suppress(OSError):  # it has ended already
                pipe.send_bytes(b"end")
        until_s = time.monotonic() + _END_S
        for pipe in self._pipes:
            wait([pipe], timeout=max(0.0, until_s - time.monotonic()))
            pipe.close()


@contextmanager
def kept(children: Children) -> Iterator[Children]:
    """Replace children that fall, from a thread, until the block ends; then end them.

    Without the fork server nobody can be replaced, and no other can be forked by a party that
    works: it is then told to end, as by SIGTERM.
    Raises      ChildProcessError at the end, when the fork server was gone
    """
    over, lost = Event(), list[OSError]()

    def look() -> None:
        try:
            while not over.wait(_LOOK_S):
                children.look()
        except OSError as error:
            lost.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=look, name="workers", daemon=True)
    thread.start()
    try:
        yield children
    finally:
        over.set()
        thread.join()
        children.end()
    if lost:
        raise ChildProcessError(
            f"workers: expected the process that begins them, it is gone: {lost[0].strerror}"
        ) from lost[0]


def until_parent_ends(pipe: Connection, stop: Callable[[], None]) -> None:
    """Stop when the other end of a pipe is gone, or speaks."""
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    stop()
