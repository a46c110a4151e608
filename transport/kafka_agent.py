"""Kafka for agents, in pure Python (kafka-python): one message a window, small and quiet.

The contract is `transport.port`'s. crc32c is imported on purpose: without it the client sums every
byte in Python, twenty times slower, and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import crc32c  # noqa: F401  (kafka-python looks for it by itself)
from kafka import KafkaAdminClient, KafkaProducer, errors
from kafka.admin import NewTopic

from .kafka_agent_client import REFUSALS, client_config, failures
from .kafka_agent_consumer import AgentConsumer
from .kafka_batch import Outbound, Outgoing
from .kafka_settings import RECORD_OVERHEAD_BYTES, SMALL_TOPIC_BYTES, KafkaSettings
from .port import RecordTooLarge, TransportRefused, TransportUnavailable, UnknownTopic


class AgentKafka:
    """An agent's access to a cluster; every producer and consumer gets connections of its own."""

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

    def producer(self) -> AgentProducer:
        return AgentProducer(self)

    def consumer(self, group: str, topics: Sequence[str]) -> AgentConsumer:
        for topic in topics:
            self.partitions(topic)
        return AgentConsumer(self.settings, group, topics)

    def close(self) -> None:
        """Nothing of our own stays open between calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        with failures(self.settings):
            admin = KafkaAdminClient(**client_config(self.settings))
            try:
                yield admin
            finally:
                admin.close()

    def _look_up(self, admin: KafkaAdminClient, topic: str) -> int | None:
        name = self.settings.named(topic)
        (found,) = admin.describe_topics([name])
        code = found["error_code"]
        if code == errors.UnknownTopicOrPartitionError.errno:
            return None
        if code:
            raise errors.for_code(code)(name)
        return len(found["partitions"])

    def _create(self, admin: KafkaAdminClient, topic: str, partitions: int) -> None:
        settings = self.settings
        new = NewTopic(
            settings.named(topic),
            partitions,
            settings.replication,
            topic_configs=dict(settings.topic_config(topic)),
        )
        try:
            admin.create_topics([new])
        except errors.TopicAlreadyExistsError:
            pass  # by another process, this moment
        except REFUSALS as error:
            raise TransportUnavailable(
                f"topic {new.name} does not exist and this user may not create it: "
                "an administrator does (pointillist kafka topics)"
            ) from error
        admin.wait_for_topics([new.name], timeout_ms=settings.timeout_s * 1000)


class AgentProducer:
    """See `transport.port.Producer`."""

    def __init__(self, kafka: AgentKafka) -> None:
        self._settings = kafka.settings
        self._outbound = Outbound(kafka.settings, kafka.partitions, self._deliver)
        self._client: KafkaProducer | None = None

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._outbound.send(topic, key, value)

    def flush(self) -> None:
        self._outbound.flush()

    def close(self) -> None:
        try:
            self._outbound.flush()
        finally:
            self._drop(self._settings.timeout_s)

    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        left = list(range(len(records)))
        try:
            with failures(self._settings):
                left, failed = self._send_all(self._connected(), records)
                if failed is not None:
                    raise failed
        except (TransportUnavailable, RecordTooLarge) as failure:
            self._drop(0)  # what it still holds is ours: a fresh client sends it
            return left, failure
        return left, None

    def _send_all(
        self, client: KafkaProducer, records: Sequence[Outgoing]
    ) -> tuple[list[int], Exception | None]:
        futures = [
            client.send(one.topic, one.value, one.key, partition=one.partition) for one in records
        ]
        with suppress(errors.KafkaTimeoutError):
            client.flush(self._settings.timeout_s)
        left = [place for place, future in enumerate(futures) if not future.succeeded()]
        if not left:
            return [], None
        failed = next((f.exception for f in futures if f.failed()), None)
        return left, failed or errors.KafkaTimeoutError(f"{len(left)} records not acknowledged")

    def _connected(self) -> KafkaProducer:
        if self._client is None:
            timeout_ms = round(self._settings.timeout_s * 1000)
            config = client_config(self._settings) | {
                "metrics_enabled": False,
                "request_timeout_ms": timeout_ms,
                "delivery_timeout_ms": 2 * timeout_ms,
                "max_block_ms": timeout_ms,
                "linger_ms": timeout_ms,  # flush ends it: records of one flush leave together
                "batch_size": SMALL_TOPIC_BYTES - 16 * 1024,
                "max_request_size": self._settings.max_value_bytes + RECORD_OVERHEAD_BYTES,
                "allow_auto_create_topics": False,
            }
            self._client = KafkaProducer(**config)
        return self._client

    def _drop(self, patience_s: float) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(errors.KafkaError):
                client.close(timeout=patience_s)
