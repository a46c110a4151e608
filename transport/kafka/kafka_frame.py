"""What both Kafka clients share: topics, the producer, its bounded buffer, how failures read.

A flush hands everything to the client at once, so that the records of one partition leave as one
batch, which a broker appends whole or not at all; records that a broker has not acknowledged stay
here, in order, for the next flush.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from transport.port import (
    MAX_KEY_BYTES,
    Consumer,
    RecordTooLarge,
    TransportRefused,
    TransportUnavailable,
    UnknownTopic,
    partition_of,
)
from transport.process.closing import Closing

from .kafka_settings import SMALL_TOPIC_BYTES, KafkaSettings, KafkaSettingsError

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
        self._pending_bytes = sum(len(record.key) + len(record.value) for record in self._pending)
        if failure is not None:
            raise failure


A = TypeVar("A")
"""A client's own administrator."""

STEP_S: Final = 0.05


class Refusal(Enum):
    """Why a broker will not have us; the value names the settings to look at.

    A broker that wants another certificate of ours and one whose certificate we do not trust
    differ in nothing that both clients tell.
    """

    LOGIN = "login"
    MECHANISM = "sasl"
    CERTIFICATE = "ca_file, cert_file and key_file, and the name in bootstrap"
    RIGHTS = "this user's rights (pointillist kafka topics)"


def refused(settings: KafkaSettings, refusal: Refusal, why: str) -> TransportRefused:
    """Say who was refused, why, and which setting to look at."""
    look_at = refusal.value
    if refusal is Refusal.LOGIN:
        look_at = "token_file" if settings.token_file is not None else "username and password_file"
    return TransportRefused(
        f"Kafka at {', '.join(settings.bootstrap)} refuses us (protocol {settings.protocol}, sasl "
        f"{settings.sasl or 'none'}, user {settings.username or 'none'}): {why}; check {look_at}"
    )


def require_secrets(settings: KafkaSettings) -> None:
    """Look at the files again before a client is made: somebody may be replacing one.

    Raises      TransportRefused
    """
    try:
        settings.check_files()
    except KafkaSettingsError as error:
        raise refused(settings, Refusal.LOGIN, str(error)) from error


def away(settings: KafkaSettings, why: str) -> TransportUnavailable:
    """Say that nobody answers as expected: away, or spoken to in the wrong way."""
    return TransportUnavailable(
        f"Kafka at {', '.join(settings.bootstrap)} does not serve (protocol {settings.protocol}): "
        f"{why}; check bootstrap and tls if it should"
    )


def may_not_create(topic: str) -> TransportUnavailable:
    """Say whose business a topic is."""
    return TransportUnavailable(
        f"topic {topic} does not exist and this user may not create it: "
        "an administrator does (pointillist kafka topics)"
    )


class KafkaFrame(Closing, Generic[A]):
    """One side's access to a cluster; see `transport.port.Transport`."""

    report_partitions = 32
    """As many tasks as Spark can have work for; the partitions of a topic are never changed."""

    def __init__(self, settings: KafkaSettings) -> None:
        settings.check_files()
        self.settings = settings
        self._partitions: dict[str, int] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic where it is missing; one that we may not see is the operator's."""
        with suppress(TransportRefused), self._admin() as admin:
            if self._look_up(admin, name) is None:
                self._create(admin, name, partitions)

    def consumer(self, group: str, topics: Sequence[str]) -> Consumer:
        for topic in topics:
            self.partitions(topic)
        return self._consumer(group, topics)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises      UnknownTopic, TransportUnavailable
        """
        if topic not in self._partitions:
            with self._admin() as admin:
                found = self._look_up(admin, topic)
            if found is None:
                raise UnknownTopic(f"topic {topic} does not exist; create_topic comes first")
            self._partitions[topic] = found
        return self._partitions[topic]

    def newest_s(self, topics: Sequence[str]) -> float | None:
        """When the newest record was appended, by the broker's clock: topics are stamped by it."""
        slots = []
        for topic in topics:
            with suppress(UnknownTopic):
                slots += [(self.settings.named(topic), p) for p in range(self.partitions(topic))]
        if not slots:
            return None
        with self._admin() as admin:
            newest_ms = max(self._newest_ms(admin, slots))
        return None if newest_ms < 0 else newest_ms / 1000

    def close(self) -> None:
        """Let go of everything that this object opened."""

    @abstractmethod
    def _newest_ms(self, admin: A, slots: Sequence[tuple[str, int]]) -> Iterable[int]:
        """The newest time stamp of each (topic, partition), -1 of one without records."""

    @abstractmethod
    def _admin(self) -> AbstractContextManager[A]:
        """An administrator; inside, the client's errors are the port's."""

    @abstractmethod
    def _look_up(self, admin: A, topic: str) -> int | None:
        """How many partitions a topic has, None where there is none."""

    @abstractmethod
    def _create(self, admin: A, topic: str, partitions: int) -> None:
        """Create a topic and wait until it is seen."""

    @abstractmethod
    def _consumer(self, group: str, topics: Sequence[str]) -> Consumer:
        """Join a group; the topics exist."""


class BatchingProducer(ABC):
    """See `transport.port.Producer`; what is not acknowledged stays here, not in the client."""

    def __init__(self, kafka: KafkaFrame[A]) -> None:
        self._settings = kafka.settings
        self._outbound = Outbound(kafka.settings, kafka.partitions, self._deliver)

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._outbound.send(topic, key, value)

    def flush(self) -> None:
        self._outbound.flush()

    def close(self) -> None:
        try:
            self._outbound.flush()
        finally:
            self._drop()

    @abstractmethod
    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        """Send records and wait; give the places of those not acknowledged, and why.

        After a failure the client is dropped: what it still holds is ours, a fresh one sends it.
        """

    @abstractmethod
    def _drop(self) -> None:
        """Let go of the client, if there is one, without waiting for what it still holds."""
