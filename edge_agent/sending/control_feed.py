"""Tasks, rosters and key announcements from the log, as events; each process reads all of them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Final

from edge_agent.ledger.ledger_records import LedgerView
from edge_agent.protocol.protocol_events import (
    Event,
    KeysAnnounced,
    Refuse,
    RosterReceived,
    TaskReceived,
)
from edge_agent.protocol.task_book import Recovering, TaskBook
from edge_agent.protocol.task_check import ParticipantRules
from transport.port import Consumer, Record, Transport, TransportUnavailable, create_topics
from wire.envelope import Kind, unwrap
from wire.epoch import KeyAnnouncement
from wire.rejection import ReportRejected
from wire.task import Task
from wire.topics import KEYS, ROSTERS, TASKS, TOPICS

_MAX_BYTES: Final = {topic.name: topic.max_bytes for topic in TOPICS}
_TOPICS: Final = (TASKS, ROSTERS, KEYS)
_RECORDS: Final = 100
_POLLS: Final = 10
_FIRST_WAIT_S: Final = 5.0
"""A cluster lets a new member in only after seconds."""


class ControlFeed:
    """Reads the control topics from the oldest record on, bounded a step."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._consumer: Consumer | None = None

    def events(self, now_s: int) -> Iterator[Event | Refuse]:
        """Yield what came since the last call, at most 1,000 records.

        Raises      TransportUnavailable, also after some were yielded
        """
        if self._consumer is None:
            create_topics(self._transport)
            group = f"{self._name}-{secrets.token_hex(6)}"
            self._consumer = self._transport.consumer(group, _TOPICS)
        for _ in range(_POLLS):  # a flooded topic must not stop the agent
            records = self._consumer.poll(_RECORDS, 0.0)
            # Rosters and keys first, so that a task finds what its first epoch needs.
            for record in sorted(records, key=lambda r: r.topic == TASKS):
                event = _event(record, now_s)
                if event is not None:
                    yield event
            if not records:
                break

    def restart(self) -> None:
        """Read from the oldest record on again, at the next call."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(TransportUnavailable):
                consumer.close()

    def close(self) -> None:
        """Let the consumer go. Raises TransportUnavailable."""
        if self._consumer is not None:
            self._consumer.close()


def tasks_on(transport: Transport, rules: ParticipantRules, now_s: int) -> list[Task]:
    """Give the newest version of each series that a host with these rules would take.

    Raises      TransportUnavailable, UnknownTopic
    """
    book = TaskBook(rules, LedgerView(hosts=()))
    consumer = transport.consumer(f"tasks-{secrets.token_hex(6)}", (TASKS,))
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


def _event(record: Record, now_s: int) -> Event | Refuse | None:
    """Give a record's event, its refusal, or None for a kind that does not belong there."""
    try:
        kind, core = unwrap(record.value, _MAX_BYTES[record.topic])
        if kind is Kind.TASK and record.topic == TASKS:
            return TaskReceived(core, now_s)
        if kind is Kind.ROSTER and record.topic == ROSTERS:
            return RosterReceived(core, now_s)
        if kind is Kind.KEY_ANNOUNCEMENT and record.topic == KEYS:
            return KeysAnnounced((KeyAnnouncement.decode(core),), now_s)
    except ReportRejected as refusal:
        return Refuse(refusal.reason, 0, str(refusal))
    return None
