"""The workers of a schedule's Leader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from aggregator.workers.desk import Reply
from aggregator.workers.words import Word
from aggregator.workers.worker_port import CoordinatorUnavailable
from aggregator.workers.worker_shell import WorkerShell
from tests.schedules.leaders import LeaderProcess
from tests.schedules.machine import Crash, Machine, Process
from tests.schedules.signed_world import parties
from tests.schedules.simulated_log import LogClient, SimulatedConsumer, SimulatedLog

_PATIENCE: Final = 40
"""Pauses of one turn; then the worker counts as one that hangs, and is started again."""


class Hangs(BaseException):
    """The worker would wait for its coordinator."""


class WorkersLog(LogClient):
    """A connection whose consumers share the report topic with those of other workers."""

    def consumer(self, group: str, topics: Sequence[str]) -> SimulatedConsumer:
        consumer = super().consumer(group, topics)
        consumer.divided = True
        return consumer


class WorkerProcess(Process):
    """One worker; `lose` says which words or answers are lost, once each."""

    def __init__(
        self, name: str, log: SimulatedLog, now: Callable[[], float], leader: LeaderProcess
    ) -> None:
        super().__init__(name, now)
        self.client = WorkersLog(log, self)
        self._leader = leader
        self.lose: list[str] = []
        self._draws = (f"{name}/{number}" for number in itertools.count())
        self._shell: WorkerShell | None = None
        self._pauses = 0

    def turn(self, machine: Machine) -> None:
        """One turn of the shell, as far as the coordinator is there."""
        if self._now() < self.down_until_s or not self._leader.alive:
            return
        self._machine, self._pauses = machine, 0
        try:
            with machine.running(self):
                if self._shell is None or not self.alive:
                    self._start()
                if self._shell is not None:
                    self._shell.turn()
        except (Crash, Hangs):
            self.kill()

    def _start(self) -> None:
        self.lives += 1
        self.alive = True
        self._shell = WorkerShell(
            self.client, self, parties(), clock=self.clock, pause=self._pause, draw=self._draw,
            checkpoint=self.point,
        )  # fmt: skip

    def _draw(self, count: int) -> bytes:
        return next(self._draws).encode().rjust(count, b"\0")[-count:]

    def _pause(self, _seconds: float) -> None:
        self._pauses += 1
        if self._pauses > _PATIENCE:
            raise Hangs
        self._leader.attend_workers(self._machine)

    def exchange(self, worker: str, sequence: int, word: Word) -> Reply:
        """See `CoordinatorPort`."""
        lost = self.lose.pop() if self.lose else ""
        if lost == "word" or self.cut_off or not self._leader.alive:
            raise CoordinatorUnavailable("lost")
        reply = self._leader.desk.exchange(worker, sequence, word)
        if lost == "answer":
            raise CoordinatorUnavailable("lost")
        return reply

    def let_go(self) -> None:
        """It has no files."""
        self._shell = None

    def calm_down(self) -> None:
        """End every fault of it."""
        super().calm_down()
        self.lose = []
