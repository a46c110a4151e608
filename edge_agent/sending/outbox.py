"""Sealed records on their way out, each at its time, the same bytes every try; and what the control
topics tell, as events.
"""

from __future__ import annotations

import contextlib
import heapq
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from edge_agent.ledger.ledger_records import LedgerView, SealedRecord, SpooledRecord, no_fault
from edge_agent.protocol import protocol_events as events
from edge_agent.protocol.eligibility import Recovering, TaskBook
from edge_agent.protocol.task_check import ParticipantRules
from transport import interface
from wire.envelope import Kind, unwrap
from wire.epoch import KeyAnnouncement
from wire.rejection import ReportRejected
from wire.task import Task
from wire.topics import KEYS, REPORTS, ROSTERS, TASKS, TOPICS

BEAT_MS: Final = 250
"""Records leave on multiples of it; one sealed between two beats waits for the next."""
_FIRST_PAUSE_MS: Final = 1_000
_LONGEST_PAUSE_MS: Final = 30_000


class Outbox:
    """A queue by time, and one producer that is replaced after a failure."""

    def __init__(
        self, transport: interface.Transport, fault_point: Callable[[str], None] = no_fault
    ) -> None:
        self._transport = transport
        self._fault_point = fault_point
        self._producer: interface.Producer | None = None
        self._heap: list[tuple[int, int]] = []
        self._records: dict[int, SealedRecord] = {}
        self._pause_ms = 0
        self._not_before_ms = 0
        self._too_large: list[int] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, spool_ids: Sequence[int], records: Iterable[SealedRecord], now_ms: int) -> None:
        """Queue records; one that is queued already is left alone."""
        next_beat_ms = (now_ms // BEAT_MS + 1) * BEAT_MS
        for spool_id, record in zip(spool_ids, records, strict=True):
            if spool_id not in self._records:
                self._records[spool_id] = record
                heapq.heappush(self._heap, (max(record.publish_at_ms, next_beat_ms), spool_id))

    def add_spooled(self, spooled: Iterable[SpooledRecord], now_ms: int) -> None:
        for waiting in spooled:
            self.add([waiting.spool_id], [waiting.record], now_ms)

    def requeue(self) -> None:
        """Hold every record to its own time again, after a clock that was ahead."""
        self._order()
        self._not_before_ms = self._pause_ms = 0

    def _order(self) -> None:
        self._heap = [(r.publish_at_ms, i) for i, r in self._records.items()]
        heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """Give the beat of the next send, or None when nothing waits."""
        if not self._heap:
            return None
        due_ms = max(self._heap[0][0], self._not_before_ms)
        return -(-due_ms // BEAT_MS) * BEAT_MS

    def send_due(self, now_ms: int) -> tuple[int, ...]:
        """Send every record that is due, durably; give spool ids. Expired ones are let go unsent.
        Raises      TransportUnavailable: they stay queued and are tried again after a pause
        """
        beat_ms = now_ms // BEAT_MS * BEAT_MS
        if not self._heap or self._heap[0][0] > beat_ms or now_ms < self._not_before_ms:
            return ()
        due = []
        while self._heap and self._heap[0][0] <= beat_ms:
            spool_id = heapq.heappop(self._heap)[1]
            if self._records[spool_id].expires_s * 1000 > now_ms:
                due.append(spool_id)
            else:
                del self._records[spool_id]
        if not due:
            return ()
        # Epochs were sealed before the reports that need them and have lower ids.
        due.sort()
        try:
            refused = self._send([self._records[spool_id] for spool_id in due])
        except interface.TransportUnavailable:
            for spool_id in due:
                heapq.heappush(self._heap, (self._records[spool_id].publish_at_ms, spool_id))
            self._pause_ms = min(max(2 * self._pause_ms, _FIRST_PAUSE_MS), _LONGEST_PAUSE_MS)
            self._not_before_ms = now_ms + self._pause_ms
            raise
        self._pause_ms = 0
        for spool_id in due:
            del self._records[spool_id]
        self._too_large += [due[place] for place in sorted(refused)]
        return tuple(spool_id for place, spool_id in enumerate(due) if place not in refused)

    def take_too_large(self) -> tuple[int, ...]:
        """Give the spool ids of records that the log refused for their length, once."""
        taken, self._too_large = tuple(self._too_large), []
        return taken

    def _send(self, records: Sequence[SealedRecord]) -> set[int]:
        """Send records; give the places of those that the log will never take."""
        refused = set()
        try:
            if self._producer is None:
                self._producer = self._transport.producer()
            self._fault_point("outbox:before-send")
            for place, record in enumerate(records):
                try:
                    self._producer.send(record.topic, record.key, record.value)
                except interface.RecordTooLarge:
                    refused.add(place)
            self._fault_point("outbox:before-flush")
            try:
                self._producer.flush()
            except interface.RecordTooLarge as error:
                gone = {(one.topic, one.key, one.value) for one in error.refused}
                named = enumerate((one.topic, one.key, one.value) for one in records)
                refused.update(place for place, name in named if name in gone)
            self._fault_point("outbox:after-flush")
        except interface.TransportUnavailable:
            # A fresh producer holds nothing queued: the records are sent again from here alone.
            self._producer = None
            raise
        return refused

    def drop_expired(self, now_s: int) -> int:
        """Forget queued records that nobody accepts any more; give how many."""
        gone = [i for i, record in self._records.items() if record.expires_s <= now_s]
        for spool_id in gone:
            del self._records[spool_id]
        if gone:
            self._order()
        return len(gone)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


_MAX_BYTES: Final = {topic.name: topic.max_bytes for topic in TOPICS}
_TOPICS: Final = (TASKS, ROSTERS, KEYS)
_RECORDS: Final = 100
_POLLS: Final = 10
_ASK_LONGEST_S: Final = 3600
_FIRST_WAIT_S: Final = 5.0
"""A cluster lets a new member in only after seconds."""


class ControlFeed:
    """Reads the control topics from the oldest record on, bounded a step."""

    def __init__(self, transport: interface.Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._consumer: interface.Consumer | None = None
        self.longest_report: int | None = None
        self._asked_s = -_ASK_LONGEST_S

    def events(self, now_s: int) -> Iterator[events.Event | events.Refuse]:
        """Yield what came, at most 1,000 records. Raises TransportUnavailable, also after some."""
        if self._consumer is None:
            interface.create_topics(self._transport)
            group = f"{self._name}-{secrets.token_hex(6)}"
            self._consumer = self._transport.consumer(group, _TOPICS)
        if not 0 <= now_s - self._asked_s < _ASK_LONGEST_S:
            self.longest_report, self._asked_s = self._transport.longest(REPORTS), now_s
        for _ in range(_POLLS):  # a flooded topic must not stop the agent
            records = self._consumer.poll(_RECORDS, 0.0)
            # Rosters and keys first, so that a task finds what its first epoch needs.
            for record in sorted(records, key=lambda r: r.topic == TASKS):
                event = _event(record, now_s)
                if event is not None:
                    yield event
            if not records:
                break

    def notes(self) -> list[interface.LogNote]:
        return [] if self._consumer is None else self._consumer.notes()

    def restart(self) -> None:
        """Read from the oldest record on again, at the next call."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(interface.TransportUnavailable):
                consumer.close()

    def close(self) -> None:
        """Let the consumer go. Raises TransportUnavailable."""
        if self._consumer is not None:
            self._consumer.close()


def tasks_on(transport: interface.Transport, rules: ParticipantRules, now_s: int) -> list[Task]:
    """Give the newest tasks that a host would take. Raises TransportUnavailable."""
    book = TaskBook(rules, LedgerView(hosts=()))
    consumer = transport.consumer(f"agent-tasks-{secrets.token_hex(6)}", (TASKS,))
    wait_s = _FIRST_WAIT_S
    try:
        while records := consumer.poll(_RECORDS, wait_s):
            wait_s = 0.0
            for record in records:
                with contextlib.suppress(ReportRejected, Recovering):
                    kind, core = unwrap(record.value, _MAX_BYTES[TASKS])
                    if kind is Kind.TASK:
                        book.take(core, now_s)
    finally:
        consumer.close()
    return list(book.current.values())


def _event(record: interface.Record, now_s: int) -> events.Event | events.Refuse | None:
    """Give a record's event, its refusal, or None for a kind that does not belong there."""
    try:
        kind, core = unwrap(record.value, _MAX_BYTES[record.topic])
        if kind is Kind.TASK and record.topic == TASKS:
            return events.TaskReceived(core, now_s)
        if kind is Kind.ROSTER and record.topic == ROSTERS:
            return events.RosterReceived(core, now_s)
        if kind is Kind.KEY_ANNOUNCEMENT and record.topic == KEYS:
            return events.KeysAnnounced((KeyAnnouncement.decode(core),), now_s)
    except ReportRejected as refusal:
        return events.Refuse(refusal.reason, 0, str(refusal))
    return None
