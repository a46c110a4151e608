"""One agent of a fleet in a process of its own, stepped by the fleet's clock, and killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from tests.agent_live import killing
from tests.fault_notes import note

if TYPE_CHECKING:
    from tests.fault_fleet import FaultFleet

_FORK = multiprocessing.get_context("fork")


class ProcessAgent:
    """Stands where an `AgentRuntime` of the fleet stands; started again when it was killed.

    point, hit   the process ends itself when it is at the point for the hit-th time
    """

    def __init__(self, fleet: FaultFleet, number: int, point: str = "", hit: int = 1) -> None:
        self._fleet, self._number, self._point = fleet, number, point
        self.kills = 0
        self._start(point, hit)

    def _start(self, point: str, hit: int) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(
            target=_live, args=(self._fleet, self._number, theirs, point, hit)
        )
        self._process.start()
        theirs.close()

    def step(self) -> None:
        self._pause_ms = self._ask("step")

    def pause_ms(self) -> int:
        return self._pause_ms

    def close(self) -> None:
        self._ask("close")
        self._process.join(30)
        self._pipe.close()

    def _ask(self, word: str) -> int:
        try:
            return self._told(word)
        except (EOFError, ConnectionError):
            self._fell()
            return self._told(word)

    def _told(self, word: str) -> int:
        self._pipe.send((word, self._fleet.stepped.now_ms))
        return int(self._pipe.recv())

    def _fell(self) -> None:
        self._process.join(30)
        assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode
        note(f"agent@{self._point}")
        self.kills += 1
        self._pipe.close()
        self._start("", 1)


def _live(fleet: FaultFleet, number: int, pipe: Connection, point: str, hit: int) -> None:
    """What the process does: a step when it is told to, by the clock that it is told."""
    agent = fleet.agent(number, killing(point, hit))
    word = ""
    while word != "close":
        word, fleet.stepped.now_ms = pipe.recv()
        if word == "close":
            agent.close()
        else:
            agent.step()
        pipe.send(agent.pause_ms())
    os._exit(0)  # what else the process holds is its parent's
