"""What both Kafka clients share: topics, the producer around the buffer, and how failures read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from enum import Enum
from typing import Final, Generic, TypeVar

from .closing import Closing
from .kafka_batch import Outbound, Outgoing
from .kafka_settings import KafkaSettings, KafkaSettingsError
from .port import Consumer, TransportRefused, TransportUnavailable, UnknownTopic

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

    def __init__(self, settings: KafkaSettings) -> None:
        settings.check_files()
        self.settings = settings
        self._partitions: dict[str, int] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic where it is missing; one that we may not see is the operator's."""
        with suppress(TransportRefused), self._admin() as admin:
            existing = self._look_up(admin, name)
            if existing is None:
                self._create(admin, name, partitions)
            elif existing != partitions:
                raise ValueError(f"topic {name} has {existing} partitions, not {partitions}")

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

    def close(self) -> None:
        """Let go of everything that this object opened."""

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
