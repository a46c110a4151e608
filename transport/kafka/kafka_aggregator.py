"""Kafka for aggregators and simulators (confluent-kafka, C): many messages at little CPU.

The contract is `transport.port`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from .kafka_aggregator_client import (
    PURGED,
    REFUSALS,
    UNKNOWN,
    LastError,
    client_config,
    failures,
    mapped,
)
from .kafka_aggregator_consumer import AggregatorConsumer, end
from .kafka_frame import STEP_S, BatchingProducer, KafkaFrame, Outgoing, may_not_create
from .kafka_settings import RECORD_OVERHEAD_BYTES, SMALL_TOPIC_BYTES, KafkaSettings

MOVED: Final = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


class AggregatorKafka(KafkaFrame[AdminClient]):
    """An aggregator's access to a cluster; one administrator, kept until `close`."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._last = LastError()
        self._admin_client: AdminClient | None = None

    def producer(self) -> AggregatorProducer:
        return AggregatorProducer(self)

    def close(self) -> None:
        if self._admin_client is not None:
            held, self._admin_client = [self._admin_client], None
            end(held, self.settings.timeout_s)

    def _consumer(self, group: str, topics: Sequence[str]) -> AggregatorConsumer:
        return AggregatorConsumer(self.settings, group, topics)

    @contextmanager
    def _admin(self) -> Iterator[AdminClient]:
        with failures(self.settings, self._last):
            if self._admin_client is None:
                self._admin_client = AdminClient(client_config(self.settings, self._last))
            yield self._admin_client

    def _answer(self, admin: AdminClient, asked: dict[str, Future[Any]], name: str) -> Any:
        """Wait for an answer; the client's own callbacks are served meanwhile."""
        deadline = time.monotonic() + self.settings.timeout_s
        # A future holds its failure and that our frames, which hold the client: no frame holds it.
        while not (done := asked[name].done()) and time.monotonic() < deadline:
            admin.poll(0.0)
            wait([asked[name]], STEP_S)
        if not done:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
        return asked.pop(name).result()

    def _look_up(self, admin: AdminClient, topic: str) -> int | None:
        name = self.settings.named(topic)
        wanted = TopicCollection([name])
        asked = admin.describe_topics(wanted, request_timeout=self.settings.timeout_s)
        try:
            return len(self._answer(admin, asked, name).partitions)
        except KafkaException as failure:
            if failure.args[0].code() in UNKNOWN:
                return None
            raise

    def _newest_ms(self, admin: AdminClient, slots: Sequence[tuple[str, int]]) -> Iterable[int]:
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        deadline = time.monotonic() + self.settings.timeout_s
        while True:
            asked = admin.list_offsets(
                {TopicPartition(*slot): newest for slot in slots},
                request_timeout=self.settings.timeout_s,
            )
            named = {f"{slot.topic}/{slot.partition}": future for slot, future in asked.items()}
            try:
                return [int(self._answer(admin, named, name).timestamp) for name in list(named)]
            except KafkaException as failure:
                # Of partitions that were made, or moved, this moment: the client asks who has them.
                moved = failure.args[0].code() in MOVED
                if not moved or time.monotonic() > deadline:
                    raise
            time.sleep(STEP_S)

    def _create(self, admin: AdminClient, topic: str, partitions: int) -> None:
        settings, name = self.settings, self.settings.named(topic)
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=settings.replication,
            config=dict(settings.topic_config(topic)),
        )
        asked = admin.create_topics([new], operation_timeout=settings.timeout_s)
        try:
            self._answer(admin, asked, name)
        except KafkaException as failure:
            code = failure.args[0].code()
            if code in REFUSALS:
                raise may_not_create(name) from failure
            if code != KafkaError.TOPIC_ALREADY_EXISTS:  # by another process, this moment
                raise
        deadline = time.monotonic() + settings.timeout_s
        while self._look_up(admin, topic) is None:
            if time.monotonic() > deadline:
                late = KafkaError(KafkaError._TIMED_OUT, f"no broker shows topic {name} in time")
                raise KafkaException(late)
            time.sleep(STEP_S)


class AggregatorProducer(BatchingProducer):
    """Connects at the first flush."""

    def __init__(self, kafka: AggregatorKafka) -> None:
        super().__init__(kafka)
        self._last = LastError()
        self._client: Producer | None = None

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
            for place, record in enumerate(records):
                client.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=settle(place),
                )
            client.flush(self._settings.timeout_s)
        except (KafkaException, BufferError) as failure:
            failed += [refusal for refusal in failure.args if isinstance(refusal, KafkaError)]
        if not left:
            return [], None
        late = KafkaError(KafkaError._TIMED_OUT, f"{len(left)} records not acknowledged in time")
        told = [refusal for refusal in failed if refusal.code() not in PURGED]
        first = (told or [late])[0]
        places = sorted(left)
        self._drop()
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
        if self._client is not None:
            held, self._client = [self._client], None
            held[0].purge()
            held[0].flush(0)
            end(held, self._settings.timeout_s)
