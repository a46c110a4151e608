"""What both Kafka clients share on the way out: the bounded buffer and the partition of a key.

A flush hands everything to the client at once, so that the records of one partition leave as one
batch, which a broker appends whole or not at all; records that a broker has not acknowledged stay
here, in order, for the next flush.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .kafka_settings import SMALL_TOPIC_BYTES, KafkaSettings
from .partition import partition_of
from .port import MAX_KEY_BYTES, RecordTooLarge

BATCH_RECORDS = 1000
BATCH_BYTES = SMALL_TOPIC_BYTES - 64 * 1024
"""Flushed by itself beyond it; every topic takes a batch of that length."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record that no broker has acknowledged yet; `topic` is its name in the cluster."""

    topic: str
    partition: int
    key: bytes
    value: bytes


class Outbound:
    """The buffer of one producer.

    partitions  name of a topic -> number of its partitions; raises UnknownTopic
    deliver     send records and wait; gives the places of those not acknowledged, and why
    """

    def __init__(
        self,
        settings: KafkaSettings,
        partitions: Callable[[str], int],
        deliver: Callable[[Sequence[Outgoing]], tuple[list[int], Exception | None]],
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._deliver = deliver
        self._pending: list[Outgoing] = []
        self._pending_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Queue one record; where a flush before it fails, the record is not taken.

        Raises      RecordTooLarge, UnknownTopic, TransportUnavailable
        """
        limit = self._settings.value_limit(topic)
        if len(key) > MAX_KEY_BYTES:
            raise RecordTooLarge(f"key: expected at most {MAX_KEY_BYTES} bytes, got {len(key)}")
        if len(value) > limit:
            raise RecordTooLarge(f"value: expected at most {limit} bytes, got {len(value)}")
        partition = partition_of(key, self._partitions(topic))
        size = len(key) + len(value)
        full = len(self._pending) >= BATCH_RECORDS or self._pending_bytes + size > BATCH_BYTES
        if self._pending and full:
            self.flush()
        name = self._settings.named(topic)
        self._pending.append(Outgoing(name, partition, bytes(key), bytes(value)))
        self._pending_bytes += size

    def flush(self) -> None:
        """Deliver everything.

        Raises      TransportUnavailable: what was not acknowledged stays queued
        """
        if not self._pending:
            return
        left, failure = self._deliver(self._pending)
        self._pending = [self._pending[place] for place in left]
        self._pending_bytes = sum(len(one.key) + len(one.value) for one in self._pending)
        if failure is not None:
            raise failure
