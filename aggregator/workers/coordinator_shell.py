"""The Leader's process where workers read the reports: it reads epochs, settles, releases."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from aggregator.leader.leader_events import Settled
from aggregator.leader.leader_shell import LeaderShell
from aggregator.leader.leader_status import MEASURES
from aggregator.party.party_health import HealthMetric
from wire.topics import EPOCHS

from .coordinator import Coordinator
from .desk import Desk, Heard
from .readers import PARTITIONS

WORKER_MEASURES: Final = (
    HealthMetric("workers", "workers", "workers that the coordinator hears"),
    HealthMetric(
        "partitions_unread",
        "partitions_unread",
        "partitions of the report topic that no worker reads, or one that is silent",
    ),
    HealthMetric(
        "partial_sums", "partial_sums", "partitions' sums taken since the start", counter=True
    ),
)
"""What a Leader with workers says beside."""


class CoordinatorShell(LeaderShell):
    """A `LeaderShell` with a desk that workers speak to."""

    topics = (EPOCHS,)
    measures = (*MEASURES, *WORKER_MEASURES)
    poll_s = 0.02
    """It reads little, and every window waits for some of its turns."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Take what a `LeaderShell` takes."""
        self.desk = Desk(time.monotonic)
        self._heard: deque[Heard] = deque()
        super().__init__(*arguments, **named)

    @property
    def leader_pk(self) -> bytes:
        """The Leader's identity."""
        return self._directory.parties.leader_pk

    def _make_leader(self, *arguments: Any, **named: Any) -> Coordinator:
        self._coordinator = Coordinator(*arguments, partitions=PARTITIONS, **named)
        return self._coordinator

    def _lag_of_all(self) -> int | None:
        return self._coordinator.lag(self._lag, self._clock())

    def _restore(self) -> None:
        try:
            super()._restore()
        finally:
            if self._restored:
                self._coordinator.restored()

    def _note_settled(self, effect: Settled) -> None:
        super()._note_settled(effect)
        self._coordinator.note_settled(effect.key)

    def _drain(self) -> None:
        """Take what workers said as well; a full disk keeps the rest for later."""
        super()._drain()
        self._heard.extend(self.desk.take())
        while self._heard:
            self._hear(self._heard.popleft())

    def _turn(self) -> None:
        super()._turn()
        for worker, orders in self._coordinator.orders():
            self.desk.put(worker, orders)

    def _hear(self, heard: Heard) -> None:
        if heard.joined:
            self._coordinator.join(heard.worker)
            self._log.info("worker joined", workers=self._coordinator.workers)
        elif heard.word is None:
            self._coordinator.leave(heard.worker)
            self._log.warning("worker left", workers=self._coordinator.workers)
        else:
            try:
                owed = self._coordinator.hear(heard.worker, heard.word, self._clock())
            except ValueError as error:
                self._log.error("worker refused", detail=str(error))
                self.desk.end(heard.worker)
                return
            self._runner.carry_out(owed)

    def _status(self) -> dict[str, object]:
        return super()._status() | {
            "workers": self._coordinator.workers,
            "partitions_unread": self._coordinator.unread(self._clock()),
            "partial_sums": self._coordinator.sums_taken,
        }
