"""A worker's loop: the log on one side, the coordinator on the other.

It reads nothing before the coordinator granted its claims, and commits nothing of a window before
that has ended. Whatever it is not sure of (another division, a gap, a session that is over) it
reads again from the commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from aggregator.leader.intake import LEADER_GROUP
from aggregator.party.quotas import Quotas
from aggregator.protocol.checkpoints import Checkpoint, no_checkpoint
from aggregator.protocol.directory import PinnedParties
from transport.port import Consumer, Producer, Record, Transport, TransportUnavailable
from wire.topics import DEAD_LETTERS, REPORTS

from .coordinator_session import CoordinatorSession
from .desk import WordVerdict
from .words import CLAIM_BYTES, Word
from .worker import Worker
from .worker_port import CoordinatorPort

POLL_RECORDS: Final = 2000
POLL_S: Final = 0.05
"""What the coordinator asks is heard when a poll ends, and a release waits for it twice."""
RETRY_S: Final = 0.5
GRANT_S: Final = 0.01
UNREAD: Final = 1
"""The lag of one who does not know it."""
GRANT_POLLS: Final = 500
"""Looks for an answer of the coordinator's loop before the log is polled again: for the lease."""


class WorkerShell:
    """One member of the Leader's group, for as long as the process lives."""

    def __init__(
        self,
        transport: Transport,
        coordinator: CoordinatorPort,
        parties: PinnedParties,
        *,
        quotas: Quotas | None = None,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object] | None = None,
        draw: Callable[[int], bytes] = os.urandom,
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        """Join the group with the first turn.

        pause       waits so many seconds, or until `stop`; None: in real time
        draw        bytes nobody drew before: names of sessions and claims
        checkpoint  told of each step, for tests
        """
        self._transport, self._parties = transport, parties
        self._quotas = quotas
        self._clock, self._draw, self._checkpoint = clock, draw, checkpoint
        self._log = structlog.get_logger("leader-worker")
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._away = False
        self._session = CoordinatorSession(coordinator, draw, self._pause, self._stop.is_set)
        self._worker = self._new_worker()

    def stop(self) -> None:
        """End `run` soon; safe from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped."""
        try:
            while not self._stop.is_set():
                self.turn()
        finally:
            if self._consumer is not None:
                with suppress(TransportUnavailable):
                    self._consumer.close()
            if self._producer is not None:
                with suppress(TransportUnavailable):
                    self._producer.close()

    def _new_worker(self) -> Worker:
        """One that knows nothing, as a session begins with it."""
        return Worker(self._parties, lambda: self._draw(CLAIM_BYTES), self._quotas)

    def turn(self) -> None:
        """One round: read, take, say what is new, do what is said, commit."""
        try:
            self._read()
            lag = (self._consumer and self._consumer.lag()) or 0
            lag = max(lag, UNREAD) if self._worker.asking else lag
            self._away_no_more()
        except TransportUnavailable as error:
            self._log_away(error)
            lag = None
        self._checkpoint("before word")
        self._say(self._worker.word(lag))
        self._checkpoint("after word")
        if lag is None:
            self._pause(RETRY_S)
            return
        with suppress(TransportUnavailable):  # the next read says so
            self._write_letters()
            self._commit()

    def _write_letters(self) -> None:
        """Write of what was refused."""
        letters = self._worker.letters.take()
        if letters:
            self._producer = self._producer or self._transport.producer()
            for letter in letters:
                self._producer.send(DEAD_LETTERS, b"", letter)
            self._producer.flush()

    # The log

    def _read(self) -> None:
        if self._consumer is None:
            self._consumer = self._transport.consumer(LEADER_GROUP, [REPORTS])
        records: list[Record] = self._consumer.poll(POLL_RECORDS, POLL_S)
        held = {partition for _topic, partition in self._consumer.positions()}
        worker = self._worker
        follows = (
            held == worker.claims.held and not worker.claims.superseded and worker.claims.ready
        )
        if not follows or not worker.hear(records, self._clock()):
            self._start_over(held)
        self._say_while(lambda: self._worker.asking)

    def _start_over(self, held: set[int]) -> None:
        """Claim what the group gives, wait until the claims count, read from the commit."""
        self._checkpoint("before claim")
        self._worker.divide(held)
        if self._say_while(lambda: not self._worker.claims.ready) is False:
            return
        self._checkpoint("after claim")
        if self._consumer is not None:
            self._consumer.seek_to_committed()

    def _say_while(self, waits: Callable[[], bool]) -> bool:
        """Speak with the coordinator until nothing is waited for; False when the session is over.

        It gives up in time for the next poll, with which it goes on.
        """
        session = self._session.name
        for _ in range(GRANT_POLLS):
            if not waits():
                break
            self._say(self._worker.word(UNREAD))
            if self._session.name != session or self._stop.is_set():
                return False
            self._pause(GRANT_S)
        return True

    def _commit(self) -> None:
        offsets = self._worker.offsets()
        if offsets and self._consumer is not None:
            self._checkpoint("before commit")
            self._consumer.commit(offsets)

    def _log_away(self, error: TransportUnavailable) -> None:
        if not self._away:
            self._log.warning("log away", detail=str(error))
        self._away = self._worker.claims.superseded = True

    def _away_no_more(self) -> None:
        if self._away:
            self._log.warning("log is back")
        self._away = False

    # The coordinator

    def _say(self, word: Word) -> None:
        """Say a word until it is taken, and do what the answer says."""
        reply = self._session.say(word)
        if reply is None:
            return
        if reply.verdict is WordVerdict.UNKNOWN:
            self._session.begin()
            self._worker = self._new_worker()
            return
        self._worker.heed(reply.orders, self._clock())
