"""Offsets of one topic on Kafka, and single records, for a reader that is no member of a group."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from transport.port import Record

from .kafka_aggregator_client import LastError, client_config, failures, watermarks
from .kafka_aggregator_consumer import end
from .kafka_settings import RECORD_OVERHEAD_BYTES, KafkaSettings

_READ_AT_ONCE: Final = 500
_POLL_S: Final = 0.1


class KafkaOffsets:
    """What a group has committed, and what lies where; every method raises TransportUnavailable."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        """Connect with the first question.

        group       whose offsets are read and committed; it may have no members then
        """
        self._settings, self._topic = settings, topic
        self._partitions = 0
        self._last = LastError()
        self._config = {
            "group.id": settings.named(group),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # as the group's members read
            "fetch.message.max.bytes": settings.max_value_bytes + RECORD_OVERHEAD_BYTES,
        }
        self._client: Consumer | None = None

    def _open(self) -> Consumer:
        if self._client is None:
            self._client = Consumer(client_config(self._settings, self._last) | self._config)
        return self._client

    def _slot(self, partition: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._settings.named(self._topic), partition, offset)

    def bounds(self) -> dict[int, tuple[int, int]]:
        """The oldest and the next offset of each partition."""
        with failures(self._settings, self._last):
            client = self._open()
            if not self._partitions:  # the log has as many as it was made with
                self._partitions = self._ask_partitions(client)
            return {
                part: watermarks(client, self._slot(part), self._settings.timeout_s)
                for part in range(self._partitions)
            }

    def _ask_partitions(self, client: Consumer) -> int:
        name = self._settings.named(self._topic)
        found = client.list_topics(name, timeout=self._settings.timeout_s).topics[name]
        if found.error is not None:
            raise KafkaException(found.error)
        return len(found.partitions)

    def starts(self) -> dict[int, int]:
        """Where the group goes on: at its commit, or where the log begins."""
        bounds = self.bounds()
        with failures(self._settings, self._last):
            slots = [self._slot(part) for part in bounds]
            found = self._open().committed(slots, timeout=self._settings.timeout_s)
        return {slot.partition: max(slot.offset, bounds[slot.partition][0]) for slot in found}

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit for the group, durably."""
        slots = [self._slot(*place) for place in offsets.items()]
        with failures(self._settings, self._last):
            for slot in self._open().commit(offsets=slots, asynchronous=False) or []:
                if slot.error is not None:
                    raise KafkaException(slot.error)

    def read(self, partition: int, offsets: Collection[int]) -> list[Record]:
        """Read single records; those that the log has no longer are not among them."""
        left, found = set(offsets), list[Record]()
        with failures(self._settings, self._last):
            oldest, _next = watermarks(
                self._open(), self._slot(partition), self._settings.timeout_s
            )
            left = {at for at in left if at >= oldest}
            while left:
                found += self._read_from(partition, left)
        return found

    def _read_from(self, partition: int, left: set[int]) -> list[Record]:
        """Read the first of these offsets, and those that follow close by."""
        client, found, first = self._open(), list[Record](), min(left)
        client.assign([self._slot(partition, first)])
        deadline = time.monotonic() + self._settings.timeout_s
        try:
            while left and min(left) < first + _READ_AT_ONCE:
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
                for message in client.consume(_READ_AT_ONCE, _POLL_S):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    offset = message.offset()
                    if offset in left:
                        left.discard(offset)
                        appended_s = message.timestamp()[1] / 1000
                        value = message.value() or b""
                        found.append(Record(self._topic, partition, offset, b"", value, appended_s))
                    first = max(first, offset or 0)
        finally:
            client.unassign()
        return found

    def close(self) -> None:
        """Let the client go."""
        if self._client is not None:
            held, self._client = [self._client], None
            end(held, self._settings.timeout_s)
