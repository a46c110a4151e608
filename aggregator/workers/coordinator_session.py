"""One reader's session with the coordinator: words in their order, each said until it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .desk import Reply, WordVerdict
from .words import CLAIM_BYTES, Word
from .worker_port import CoordinatorPort, CoordinatorUnavailable

AWAY_S: Final = 0.5
BUSY_S: Final = 0.01


class CoordinatorSession:
    """Numbers words; a session that the coordinator does not know is over, and another begins."""

    def __init__(
        self,
        coordinator: CoordinatorPort,
        draw: Callable[[int], bytes],
        pause: Callable[[float], object],
        stopped: Callable[[], bool],
    ) -> None:
        """Begin one.

        draw        bytes nobody drew before: names of sessions
        pause       waits so many seconds, or until the reader is stopped
        """
        self._coordinator, self._draw = coordinator, draw
        self._pause, self._stopped = pause, stopped
        self.begin()

    def begin(self) -> None:
        """Begin another session."""
        self.name, self._sequence = self._draw(CLAIM_BYTES).hex(), 0

    def say(self, word: Word) -> Reply | None:
        """Say a word until it is taken; None when the reader was stopped before."""
        self._sequence += 1
        while True:
            try:
                reply = self._coordinator.exchange(self.name, self._sequence, word)
            except CoordinatorUnavailable:
                self._pause(AWAY_S)
            else:
                if reply.verdict is not WordVerdict.BUSY:
                    return reply
                self._pause(BUSY_S)
            if self._stopped():
                return None
