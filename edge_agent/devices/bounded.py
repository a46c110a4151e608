"""Reads with a deadline: a driver that hangs costs a child process, never the agent.

The child is forked from this process and never executes a file, so it works after the agent has
left root and its interpreter's folder is closed to it. It keeps no file of the agent open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, Pipe
from typing import Final

from .port import (
    DeviceReader,
    DeviceReading,
    DevicesUnavailable,
    Field,
    Gap,
    GapKind,
    Inventory,
    all_gaps,
)

QUIET_S: Final = 60.0
"""How long a device that did not answer is left alone: a driver in trouble needs no more calls."""

START_S: Final = 20.0

_PR_SET_PDEATHSIG: Final = 1
_MOST_FD: Final = 1 << 16
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class BoundedReader:
    """Has a child read; kills it when it is late."""

    def __init__(
        self,
        make: Callable[[], DeviceReader],
        *,
        deadline_s: float = 2.0,
        start_s: float = START_S,
        quiet_s: float = QUIET_S,
        boottime_ns: Callable[[], int] = _boottime_ns,
    ) -> None:
        """Take how to make a reader (called in the child) and how long things may take.

        deadline_s   one look at one device
        start_s      until the driver is open: a driver without persistence wakes its GPUs first
        """
        self._make = make
        self._deadline_s = deadline_s
        self._start_s = start_s
        self._opened = False
        self._begun_ns = 0
        self._quiet_ns = int(quiet_s * 1e9)
        self._boottime_ns = boottime_ns
        self._child: tuple[int, Connection] | None = None
        self._dead: list[int] = []
        self._quiet_until_ns: dict[int, int] = {}
        self._ids: dict[int, str] = {}
        self.killed = 0
        """Children that were late."""
        self.gaps: Counter[GapKind] = Counter()

    @property
    def child_pid(self) -> int | None:
        return self._child[0] if self._child else None

    def open(self) -> Inventory:
        """Start the child. Raises DevicesUnavailable."""
        self._reap()
        if self._child is not None:
            self.close()
        self._begin()
        answer = self._answer(self._start_s)
        if isinstance(answer, Inventory):
            self._opened = True
            return answer
        self._kill()
        late = f"expected an answer of the driver in {self._start_s:g} s, got none"
        raise DevicesUnavailable(str(answer) if isinstance(answer, DevicesUnavailable) else late)

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        """Look at one device; late, it gives gaps and is left alone for a while."""
        reading = self._read(index, fields, processes)
        self.gaps.update(gap.kind for gap in reading.gaps.values())
        return reading

    def close(self) -> None:
        """End the child; a second call does nothing."""
        if self._child is not None:
            self._kill(count=False)
        self._reap()

    def _read(self, index: int, fields: Collection[Field], processes: bool) -> DeviceReading:
        now_ns = self._boottime_ns()
        known = self._ids.get(index, "")
        if self._quiet_until_ns.get(index, 0) > now_ns:
            gap = Gap(GapKind.TIMED_OUT, "left alone after a read that did not end")
            return all_gaps(index, fields, gap, now_ns, known)
        starting = self._begun_again()
        if starting is not None:
            return all_gaps(index, fields, starting, now_ns, known)
        answer = self._asked((index, tuple(fields), processes))
        if isinstance(answer, DeviceReading):
            self._quiet_until_ns.pop(index, None)
            if not answer.id.startswith("index-"):
                self._ids[index] = answer.id
            return answer
        self._quiet_until_ns[index] = self._boottime_ns() + self._quiet_ns
        gap = answer if isinstance(answer, Gap) else Gap(
            GapKind.TIMED_OUT, f"expected an answer in {self._deadline_s:g} s, got none"
        )  # fmt: skip
        return all_gaps(index, fields, gap, self._boottime_ns(), known)

    def _begin(self) -> None:
        self._child, self._opened = self._fork(), False
        self._begun_ns = self._boottime_ns()

    def _begun_again(self) -> Gap | None:
        """Start a child where there is none, and give it a moment; a gap while it is not there."""
        if self._child is None:
            self._begin()
        if self._opened:
            return None
        answer = self._answer(self._deadline_s)
        self._opened = isinstance(answer, Inventory)
        if self._opened:
            return None
        if answer is None:
            if self._boottime_ns() - self._begun_ns > self._start_s * 1e9:
                self._kill()
            return Gap(GapKind.TIMED_OUT, "the driver is starting")
        self._kill()
        return Gap(GapKind.FAILED, str(answer))

    def _asked(self, question: tuple[int, tuple[Field, ...], bool]) -> object:
        if self._child is None:
            return None
        try:
            self._child[1].send(question)
        except OSError:
            self._kill()
            return Gap(GapKind.FAILED, "the reading process ended")
        answer = self._answer(self._deadline_s)
        if not isinstance(answer, DeviceReading):
            self._kill()
        return answer

    def _answer(self, deadline_s: float) -> object:
        """Give the child's answer, None when it is late, a gap when it died."""
        if self._child is None:
            return None
        try:
            return self._child[1].recv() if self._child[1].poll(deadline_s) else None
        except (EOFError, OSError):
            return Gap(GapKind.FAILED, "the reading process ended")

    def _kill(self, count: bool = True) -> None:
        if self._child is None:
            return
        pid, connection = self._child
        self._child = None
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.killed += count
        self._dead.append(pid)
        self._reap()

    def _reap(self) -> None:
        """Collect children that ended; one that the kernel still holds is asked for next time."""
        left = []
        for pid in self._dead:
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    left.append(pid)
            except ChildProcessError:
                continue
        self._dead = left

    def _fork(self) -> tuple[int, Connection]:
        mine, its = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            its.close()
            return pid, mine
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                _keep_only(its.fileno())
                _serve(its, self._make())
        finally:
            os._exit(0)


def _keep_only(fd: int) -> None:
    """Close what the agent holds open: a lock must not outlive the agent in a hanging child."""
    os.closerange(3, fd)
    os.closerange(fd + 1, _MOST_FD)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when the child ends


def _serve(connection: Connection, reader: DeviceReader) -> None:
    try:
        connection.send(reader.open())
    except DevicesUnavailable as error:
        connection.send(error)
        return
    with contextlib.suppress(EOFError, OSError):
        while True:
            index, fields, processes = connection.recv()
            connection.send(reader.read(index, fields, processes=processes))
