"""Where workers' words arrive and orders wait for them, between the channel and the Leader's loop.

A worker says each word until it is answered, under one number, so that it is taken once; it is
answered at once, whatever the loop is at. What a worker lost with a session it reads again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from .words import OpenedEpoch, Order, Rebuild, SignedRoster, SignedTask, SumWanted, Word

MOST_WORDS: Final = 64
"""Words that wait for the loop; of 2,000 reports each they name 9 MB of hosts."""
ORDERS_BYTES: Final = 8 << 20
"""One answer ends with the order that reaches this: a frozen window of 100,000 hosts has 3 MB."""
LAPSE_S: Final = 60.0
"""A session that is silent so long is over."""


class WordVerdict(Enum):
    """What became of a word."""

    TAKEN = "taken"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a word."""

    verdict: WordVerdict
    orders: Sequence[Order] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """What the loop takes: a word of a worker, or that it came (`joined`) or went (no word)."""

    worker: str
    word: Word | None = None
    joined: bool = False


@dataclass(slots=True)
class _Session:
    sequence: int = 0
    reply: Reply = field(default_factory=lambda: Reply(WordVerdict.TAKEN))
    orders: deque[Order] = field(default_factory=deque)
    heard_s: float = 0.0


class Desk:
    """Sessions of workers; used by the channel's threads and by the loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a session.

        clock       seconds, never set back
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._heard: deque[Heard] = deque()

    # The channel

    def exchange(self, worker: str, sequence: int, word: Word) -> Reply:
        """Take a word and give what waits for its worker; the same number again changes nothing.

        sequence    from 1, one more with each word
        """
        with self._lock:
            session = self._sessions.get(worker)
            if session is None:
                if sequence != 1:
                    return Reply(WordVerdict.UNKNOWN)
                session = self._sessions[worker] = _Session()
                self._heard.append(Heard(worker, joined=True))
            session.heard_s = self._clock()
            if sequence == session.sequence:
                return session.reply
            if sequence != session.sequence + 1:
                self._end(worker)
                return Reply(WordVerdict.UNKNOWN)
            if len(self._heard) >= MOST_WORDS:
                return Reply(WordVerdict.BUSY)
            session.sequence = sequence
            self._heard.append(Heard(worker, word))
            session.reply = Reply(WordVerdict.TAKEN, _drained(session.orders))
            return session.reply

    # The loop

    def take(self) -> list[Heard]:
        """What was heard since the last call, and who was not heard for long."""
        with self._lock:
            now_s = self._clock()
            for worker, session in list(self._sessions.items()):
                if now_s - session.heard_s > LAPSE_S:
                    self._end(worker)
            heard = list(self._heard)
            self._heard.clear()
            return heard

    def put(self, worker: str, orders: Iterable[Order]) -> None:
        """Have orders wait for a worker."""
        with self._lock:
            session = self._sessions.get(worker)
            if session is not None:
                session.orders.extend(orders)

    def end(self, worker: str) -> None:
        """End a session: its worker begins another and reads everything again."""
        with self._lock:
            self._end(worker)

    def _end(self, worker: str) -> None:
        if self._sessions.pop(worker, None) is not None:
            self._heard.append(Heard(worker))


def _drained(orders: deque[Order]) -> list[Order]:
    taken: list[Order] = []
    size = 0
    while orders and size < ORDERS_BYTES:
        taken.append(orders.popleft())
        size += _bytes_of(taken[-1])
    return taken


def _bytes_of(order: Order) -> int:
    match order:
        case SignedTask() | SignedRoster():
            return len(order.content)
        case Rebuild():
            return len(order.reports)
        case SumWanted():
            return len(order.hosts)
        case OpenedEpoch():
            return 160
        case _:
            return 64
