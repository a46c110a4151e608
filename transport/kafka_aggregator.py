"""Kafka for aggregators and simulators (confluent-kafka, C): many messages at little CPU.

The contract is `transport.port`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from .kafka_aggregator_client import (
    REFUSALS,
    STEP_S,
    UNKNOWN,
    LastError,
    client_config,
    failures,
    mapped,
)
from .kafka_aggregator_consumer import AggregatorConsumer
from .kafka_batch import Outbound, Outgoing
from .kafka_settings import RECORD_OVERHEAD_BYTES, SMALL_TOPIC_BYTES, KafkaSettings
from .port import TransportRefused, TransportUnavailable, UnknownTopic


class AggregatorKafka:
    """An aggregator's access to a cluster."""

    def __init__(self, settings: KafkaSettings) -> None:
        settings.check_files()
        self.settings = settings
        self._last = LastError()
        self._admin_client: AdminClient | None = None
        self._partitions: dict[str, int] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic where it is missing; one that we may not see is the operator's."""
        with suppress(TransportRefused), failures(self.settings, self._last):
            existing = self._look_up(name)
            if existing is None:
                self._create(name, partitions)
            elif existing != partitions:
                raise ValueError(f"topic {name} has {existing} partitions, not {partitions}")

    def producer(self) -> AggregatorProducer:
        return AggregatorProducer(self)

    def consumer(self, group: str, topics: Sequence[str]) -> AggregatorConsumer:
        for topic in topics:
            self.partitions(topic)
        return AggregatorConsumer(self.settings, group, topics)

    def close(self) -> None:
        self._admin_client = None

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
            with failures(self.settings, self._last):
                found = self._look_up(topic)
            if found is None:
                raise UnknownTopic(f"topic {topic} does not exist; create_topic comes first")
            self._partitions[topic] = found
        return self._partitions[topic]

    @property
    def _admin(self) -> AdminClient:
        if self._admin_client is None:
            self._admin_client = AdminClient(client_config(self.settings, self._last))
        return self._admin_client

    def _answer(self, future: Future[Any]) -> Any:
        """Wait for an answer; the client's own callbacks are served meanwhile."""
        deadline = time.monotonic() + self.settings.timeout_s
        while not future.done() and time.monotonic() < deadline:
            self._admin.poll(0.0)
            with suppress(TimeoutError):
                future.result(STEP_S)
        if not future.done():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
        return future.result()

    def _look_up(self, topic: str) -> int | None:
        name = self.settings.named(topic)
        wanted = TopicCollection([name])
        asked = self._admin.describe_topics(wanted, request_timeout=self.settings.timeout_s)
        try:
            return len(self._answer(asked[name]).partitions)
        except KafkaException as failure:
            if failure.args[0].code() in UNKNOWN:
                return None
            raise

    def _create(self, topic: str, partitions: int) -> None:
        settings, name = self.settings, self.settings.named(topic)
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=settings.replication,
            config=dict(settings.topic_config(topic)),
        )
        asked = self._admin.create_topics([new], operation_timeout=settings.timeout_s)
        try:
            self._answer(asked[name])
        except KafkaException as failure:
            code = failure.args[0].code()
            if code in REFUSALS:
                raise TransportUnavailable(
                    f"topic {name} does not exist and this user may not create it: "
                    "an administrator does (pointillist kafka topics)"
                ) from failure
            if code != KafkaError.TOPIC_ALREADY_EXISTS:  # by another process, this moment
                raise
        deadline = time.monotonic() + settings.timeout_s
        while self._look_up(topic) is None and time.monotonic() < deadline:
            time.sleep(STEP_S)


class AggregatorProducer:
    """See `transport.port.Producer`."""

    def __init__(self, kafka: AggregatorKafka) -> None:
        self._settings = kafka.settings
        self._outbound = Outbound(kafka.settings, kafka.partitions, self._deliver)
        self._last = LastError()
        self._client: Producer | None = None

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._outbound.send(topic, key, value)

    def flush(self) -> None:
        self._outbound.flush()

    def close(self) -> None:
        try:
            self._outbound.flush()
        finally:
            self._drop()

    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        left = set(range(len(records)))
        failed: list[KafkaError] = []

        def settle(place: int) -> Callable[[KafkaError | None, Message], None]:
            def settled(error: KafkaError | None, _message: Message) -> None:
                if error is None:
                    left.discard(place)
                else:
                    failed.append(error)

            return settled

        client = self._connected()
        try:
            for place, one in enumerate(records):
                client.produce(
                    one.topic, one.value, one.key, one.partition, on_delivery=settle(place)
                )
            client.flush(self._settings.timeout_s)
        except (KafkaException, BufferError) as failure:
            failed += [one for one in failure.args if isinstance(one, KafkaError)]
        if not left:
            return [], None
        late = KafkaError(KafkaError._TIMED_OUT, f"{len(left)} records not acknowledged in time")
        first = failed[0] if failed else late
        places = sorted(left)
        self._drop()  # what it still holds is ours: a fresh client sends it
        return places, mapped(self._settings, self._last.why(first))

    def _connected(self) -> Producer:
        if self._client is None:
            self._last = LastError()
            config = client_config(self._settings, self._last) | {
                "enable.idempotence": True,
                "compression.type": "none",
                # A batch leaves when it is flushed: its records belong together.
                "linger.ms": 60_000,
                "batch.size": SMALL_TOPIC_BYTES - 16 * 1024,
                "batch.num.messages": 10_000,
                "message.max.bytes": self._settings.max_value_bytes + RECORD_OVERHEAD_BYTES,
                "message.timeout.ms": 120_000,
            }
            self._client = Producer(config)
        return self._client

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.purge()
            client.flush(0)
