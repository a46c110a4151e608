"""Reads with a deadline: a driver that hangs costs a child process, never the agent.

Children are forked by a process made before the agent opens its key: they hold no key, and no
capability by which a driver's library could read the agent's memory. Nothing executes a file, so
it works after the agent has left root. A driver that was taken over must not reach the agent by
what its child answers either: answers are values alone, no pickle that names any function.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

from collectors.boot_clock import boottime_ns
from collectors.records.basics import FailureKind, ReadFailure
from transport.process.forked import die_with, keep_only
from transport.process.privileges import give_up_capabilities

from .device_port import (
    DeviceReader,
    DeviceReading,
    DevicesUnavailable,
    Field,
    Inventory,
    all_failed,
)

MOST_BYTES: Final = 4 << 20
"""Of one answer: 1,024 processes with their control groups take a fourth of it."""
_KINDS: Final = {
    "collectors.devices.device_port": frozenset({
        "DeviceReading", "DevicesUnavailable", "Field", "Inventory", "Partition", "ProcessUse",
    }),
    "collectors.records.basics": frozenset({"ReadFailure", "FailureKind"}),
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
    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        """Fork the process: what is in memory now is in every child."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                give_up_capabilities()
                die_with(parent)
                keep_only(its.fileno())
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
        """Give a new child that does the task. Raises SpawnerClosed."""
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


def _tend(asked: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects children that end
    while message := asked.recv(_MOST_TASK_BYTES):
        mine, its = Pipe()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with(me)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                keep_only(its.fileno())
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


QUIET_S: Final = 60.0
"""How long a device that did not answer is left alone: a driver in trouble needs no more calls."""

START_S: Final = 20.0

_Question = tuple[tuple[Field, ...], bool]


class BoundedReader:
    def __init__(
        self,
        make: Callable[[], DeviceReader],
        spawner: Spawner | None = None,
        *,
        deadline_s: float = 2.0,
        start_s: float = START_S,
        quiet_s: float = QUIET_S,
        boottime_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        """Take how to make a reader (called in the child) and how long things may take.

        spawner      where children come from; None: one of its own, for a process without keys
        start_s      until the driver is open: a driver without persistence wakes its GPUs first
        """
        self._make = make
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._opened = False
        self._begun_ns = 0
        self._quiet_ns = int(quiet_s * 1e9)
        self._boottime_ns = boottime_ns
        self._spawner = spawner
        self._own: Spawner | None = None
        self._child: Child | None = None
        self._quiet_until_ns: dict[int, int] = {}
        self._ids: dict[int, str] = {}
        self._devices = 0
        self._owed: deque[int] = deque()
        """Devices that the child was asked for and has not told of, in its order."""
        self._question: _Question = ((), False)
        self.killed = 0

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child else None

    def open(self) -> Inventory:
        self.close()
        try:
            self._begin()
        except SpawnerClosed as error:
            raise DevicesUnavailable(str(error)) from None
        answer = self._answer(self._start_s)
        if isinstance(answer, Inventory):
            self._has_opened(answer)
            return answer
        self._kill()
        late = f"expected an answer of the driver in {self._start_s:g} s, got none"
        raise DevicesUnavailable(str(answer) if isinstance(answer, DevicesUnavailable) else late)

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        now_ns = self._boottime_ns()
        known = self._ids.get(index, "")
        if self._quiet_until_ns.get(index, 0) > now_ns:
            gap = ReadFailure(FailureKind.LEFT_ALONE, "left alone after a read that did not end")
            return all_failed(index, fields, gap, now_ns, known)
        starting = self._begun_again()
        if starting is not None:
            return all_failed(index, fields, starting, now_ns, known)
        answer = self._asked(index, (tuple(fields), processes))
        if isinstance(answer, DeviceReading):
            self._quiet_until_ns.pop(index, None)
            if not answer.id.startswith("index-"):
                self._ids[index] = answer.id
            # A GPU that fell off the bus cannot say its name any more, and is still that GPU.
            return replace(answer, id=self._ids.get(index, answer.id))
        self._quiet_until_ns[index] = self._boottime_ns() + self._quiet_ns
        if not isinstance(answer, ReadFailure):
            late = f"expected an answer in {self._deadline_s:g} s, got none"
            answer = ReadFailure(FailureKind.TIMED_OUT, late)
        return all_failed(index, fields, answer, self._boottime_ns(), known)

    def ask(
        self, indices: Iterable[int], fields: Collection[Field], *, processes: bool = False
    ) -> None:
        """Ask for several looks by one question; `read` gives each, if called in this order."""
        now_ns = self._boottime_ns()
        self._pass_over()
        wanted = tuple(index for index in indices if self._quiet_until_ns.get(index, 0) <= now_ns)
        if wanted and self._opened and self._child is not None:
            self._send(wanted, (tuple(fields), processes))

    def close(self) -> None:
        """End the child; a second call does nothing."""
        if self._child is not None:
            self._kill(count=False)
        if self._own is not None:
            self._own.close()
            self._own = None

    def _begin(self) -> None:
        spawner = self._spawner or self._own
        if spawner is None:
            spawner = self._own = Spawner()
        self._child, self._opened = spawner.start(partial(_serve, self._make)), False
        self._begun_ns = self._boottime_ns()

    def _begun_again(self) -> ReadFailure | None:
        """Start a child where there is none, and give it a moment; a gap while it is not there."""
        if self._child is None:
            try:
                self._begin()
            except SpawnerClosed as error:
                return ReadFailure(FailureKind.FAILED, str(error))
        if self._opened:
            return None
        answer = self._answer(self._deadline_s)
        if isinstance(answer, Inventory):
            self._has_opened(answer)
            return None
        if answer is None:
            if self._boottime_ns() - self._begun_ns > self._start_s * 1e9:
                self._kill()
            return ReadFailure(FailureKind.LEFT_ALONE, "the driver is starting")
        self._kill()
        return ReadFailure(FailureKind.FAILED, str(answer))

    def _has_opened(self, inventory: Inventory) -> None:
        """Forget the names when the driver counts anew: with a GPU less the others move up."""
        if inventory.devices != self._devices:
            self._ids.clear()
        self._opened, self._devices = True, inventory.devices

    def _asked(self, index: int, question: _Question) -> object:
        if not self._owed or self._owed[0] != index or self._question != question:
            self._pass_over()
            if not self._send((index,), question):
                return ReadFailure(FailureKind.FAILED, "the reading process ended")
        return self._owed_answer()

    def _send(self, indices: tuple[int, ...], question: _Question) -> bool:
        if self._child is None:
            return False
        try:
            self._child.connection.send((indices, *question))
        except OSError:
            self._kill()
            return False
        self._owed, self._question = deque(indices), question
        return True

    def _owed_answer(self) -> object:
        self._owed.popleft()
        answer = self._answer(self._deadline_s)
        if not isinstance(answer, DeviceReading):
            self._kill()
        return answer

    def _pass_over(self) -> None:
        """Drop answers that nobody took: a sweep whose time was up asked for more than it read."""
        while self._owed:
            index = self._owed[0]
            if not isinstance(self._owed_answer(), DeviceReading):
                self._quiet_until_ns[index] = self._boottime_ns() + self._quiet_ns

    def _answer(self, deadline_s: float) -> object:
        """Give the child's answer, None when it is late, a gap when it died."""
        if self._child is None:
            return None
        try:
            connection = self._child.connection
            return receive(connection) if connection.poll(deadline_s) else None
        except AnswerRefused as error:
            return ReadFailure(FailureKind.FAILED, str(error))
        except (EOFError, OSError):
            return ReadFailure(FailureKind.FAILED, "the reading process ended")

    def _kill(self, count: bool = True) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._child = None
        self._owed.clear()
        self.killed += count


def _serve(make: Callable[[], DeviceReader], connection: Connection) -> None:
    reader = make()
    try:
        connection.send(reader.open())
    except DevicesUnavailable as error:
        connection.send(error)
        return
    with contextlib.suppress(EOFError, OSError):
        while True:
            indices, fields, processes = connection.recv()
            for index in indices:
                connection.send(reader.read(index, fields, processes=processes))
