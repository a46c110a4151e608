"""Reads with a deadline: a driver that hangs costs a child process, never the agent.

The child comes from a spawner (`spawner.py`), which the agent makes before it opens its key.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

from collectors.boot_clock import boottime_ns
from collectors.records.gap import Gap, GapKind

from .device_port import DeviceReader, DeviceReading, DevicesUnavailable, Field, Inventory, all_gaps
from .spawner import AnswerRefused, Child, Spawner, SpawnerClosed, receive

QUIET_S: Final = 60.0
"""How long a device that did not answer is left alone: a driver in trouble needs no more calls."""

START_S: Final = 20.0

_Question = tuple[tuple[Field, ...], bool]
"""Fields, and whether processes are wanted."""


class BoundedReader:
    """Has a child read; kills it when it is late."""

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

        make         can be pickled
        spawner      where children come from; None: one of its own, for a process without keys
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
        """Children that were late."""
        self.gaps: Counter[GapKind] = Counter()

    @property
    def child_pid(self) -> int | None:
        return self._child.pid if self._child else None

    def open(self) -> Inventory:
        """Start the child. Raises DevicesUnavailable."""
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
        """Look at one device; late, it gives gaps and is left alone for a while."""
        reading = self._read(index, fields, processes)
        self.gaps.update(gap.kind for gap in reading.gaps.values())
        return reading

    def ask(
        self, indices: Iterable[int], fields: Collection[Field], *, processes: bool = False
    ) -> None:
        """Ask for several looks by one question; `read` gives each, if it is called in this order.

        A device that is left alone is not asked, and none is while the driver is starting.
        """
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

    def _read(self, index: int, fields: Collection[Field], processes: bool) -> DeviceReading:
        now_ns = self._boottime_ns()
        known = self._ids.get(index, "")
        if self._quiet_until_ns.get(index, 0) > now_ns:
            gap = Gap(GapKind.LEFT_ALONE, "left alone after a read that did not end")
            return all_gaps(index, fields, gap, now_ns, known)
        starting = self._begun_again()
        if starting is not None:
            return all_gaps(index, fields, starting, now_ns, known)
        answer = self._asked(index, (tuple(fields), processes))
        if isinstance(answer, DeviceReading):
            self._quiet_until_ns.pop(index, None)
            if not answer.id.startswith("index-"):
                self._ids[index] = answer.id
            # A GPU that fell off the bus cannot say its name any more, and is still that GPU.
            return replace(answer, id=self._ids.get(index, answer.id))
        self._quiet_until_ns[index] = self._boottime_ns() + self._quiet_ns
        gap = answer if isinstance(answer, Gap) else Gap(
            GapKind.TIMED_OUT, f"expected an answer in {self._deadline_s:g} s, got none"
        )  # fmt: skip
        return all_gaps(index, fields, gap, self._boottime_ns(), known)

    def _begin(self) -> None:
        spawner = self._spawner or self._own
        if spawner is None:
            spawner = self._own = Spawner()
        self._child, self._opened = spawner.start(partial(_serve, self._make)), False
        self._begun_ns = self._boottime_ns()

    def _begun_again(self) -> Gap | None:
        """Start a child where there is none, and give it a moment; a gap while it is not there."""
        if self._child is None:
            try:
                self._begin()
            except SpawnerClosed as error:
                return Gap(GapKind.FAILED, str(error))
        if self._opened:
            return None
        answer = self._answer(self._deadline_s)
        if isinstance(answer, Inventory):
            self._has_opened(answer)
            return None
        if answer is None:
            if self._boottime_ns() - self._begun_ns > self._start_s * 1e9:
                self._kill()
            return Gap(GapKind.LEFT_ALONE, "the driver is starting")
        self._kill()
        return Gap(GapKind.FAILED, str(answer))

    def _has_opened(self, inventory: Inventory) -> None:
        """Forget the names when the driver counts anew: with a GPU less the others move up."""
        if inventory.devices != self._devices:
            self._ids.clear()
        self._opened, self._devices = True, inventory.devices

    def _asked(self, index: int, question: _Question) -> object:
        if not self._owed or self._owed[0] != index or self._question != question:
            self._pass_over()
            if not self._send((index,), question):
                return Gap(GapKind.FAILED, "the reading process ended")
        return self._owed_answer()

    def _send(self, indices: tuple[int, ...], question: _Question) -> bool:
        """Ask the child; False where there is none any more."""
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
        """Take the next answer that the child owes, or end it."""
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
            return Gap(GapKind.FAILED, str(error))
        except (EOFError, OSError):
            return Gap(GapKind.FAILED, "the reading process ended")

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
