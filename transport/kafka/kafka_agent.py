"""Kafka for agents, in pure Python (kafka-python): one message a window, small and quiet.

Without crc32c the client sums every byte in Python, twenty times slower, and says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import crc32c  # noqa: F401  (kafka-python looks for it by itself)
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic, OffsetSpec

from transport.interface import (
    Outgoing,
    RecordTooLarge,
    TransportRefused,
    TransportUnavailable,
)
from transport.process.supervision import close_within

from . import kafka_agent_consumer as member
from . import kafka_frame as frame

_LONGEST = "max.message.bytes"
_ALONE_BYTES = 256
"""Of a batch with one report beside that: heads, and the host's id as its key."""


class AgentKafka(frame.KafkaFrame[KafkaAdminClient]):
    """An agent's access to a cluster; every producer and consumer gets connections of its own."""

    def producer(self) -> AgentProducer:
        return AgentProducer(self)

    def _consumer(self, group: str, topics: Sequence[str]) -> member.AgentConsumer:
        return member.AgentConsumer(self.settings, group, topics)

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        with member.failures(self.settings):
            with member.ended_on_failure(member.client_config(self.settings)) as config:
                admin = KafkaAdminClient(**config)
            try:
                yield admin
            finally:
                close_within(self.settings.timeout_s, admin.close)

    def _look_up(self, admin: KafkaAdminClient, topic: str) -> frame.FoundTopic | None:
        name = self.settings.named(topic)
        (found,) = admin.describe_topics([name])
        code = found["error_code"]
        if code == errors.UnknownTopicOrPartitionError.errno:
            return None
        if code:
            raise errors.for_code(code)(name)
        told = found.get("topic_id")  # brokers before 2.8 tell none, and some after it zeros: None
        return frame.FoundTopic(
            len(found["partitions"]), "" if told is None else member.identity_of(told)
        )

    def _operations(
        self, admin: KafkaAdminClient, names: Sequence[str]
    ) -> dict[str, frozenset[str] | None]:
        found: dict[str, frozenset[str] | None] = {}
        for topic in admin.describe_topics(list(names)):
            code, told = topic["error_code"], topic.get("authorized_operations")
            if code == errors.TopicAuthorizationFailedError.errno:
                found[topic["name"]] = frozenset()
            elif code not in {0, errors.UnknownTopicOrPartitionError.errno}:
                raise errors.for_code(code)(topic["name"])
            elif not code:
                found[topic["name"]] = None if told is None else frozenset(told)
        return found

    def longest(self, topic: str) -> int:
        """What the topic says, where we have the right to ask: rules of before do not give it."""
        limit, name = super().longest(topic), self.settings.named(topic)
        with suppress(TransportRefused), self._admin() as admin:
            told = admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name, {_LONGEST: None})],
                config_filter="all",
            )
            # Who may not ask gets an answer without settings: 3.0.12 looks at no error code of it.
            found = told.get("topic", {}).get(name, {}).get(_LONGEST, {}).get("value")
            if found is not None:
                return min(limit, int(found) - _ALONE_BYTES)
        return limit

    def _newest_ms(
        self, admin: KafkaAdminClient, slots: Sequence[tuple[str, int]]
    ) -> Iterable[int]:
        asked = {TopicPartition(*slot): OffsetSpec.MAX_TIMESTAMP for slot in slots}
        timeout_ms = round(self.settings.timeout_s * 1000)
        found = admin.list_partition_offsets(asked, timeout_ms=timeout_ms)
        return [int(place.timestamp) for place in found.values()]

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
        except errors.AuthorizationError as error:
            raise frame.may_not_create(new.name) from error
        admin.wait_for_topics([new.name], timeout_ms=settings.timeout_s * 1000)


class AgentProducer(frame.BufferedProducer):
    """Connects at the first flush."""

    def __init__(self, kafka: AgentKafka) -> None:
        super().__init__(kafka)
        self._client: KafkaProducer | None = None

    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        left = list(range(len(records)))
        try:
            with member.failures(self._settings):
                left, failed = self._send_all(self._connected(), records)
                if failed is not None:
                    raise failed
        except (TransportUnavailable, RecordTooLarge) as failure:
            self._drop()
            return left, failure
        return left, None

    def _send_all(
        self, client: KafkaProducer, records: Sequence[Outgoing]
    ) -> tuple[list[int], Exception | None]:
        try:
            futures = [
                client.send(
                    self._settings.named(record.topic),
                    record.value,
                    record.key,
                    partition=record.partition,
                )
                for record in records
            ]
        except ValueError as error:  # a partition that the topic has no longer, or not yet
            return list(range(len(records))), errors.UnknownTopicOrPartitionError(str(error))
        deadline = time.monotonic() + self._settings.timeout_s
        while True:  # a batch that the client divides is waited for by the next flush alone
            left_s = max(0.0, deadline - time.monotonic())
            with suppress(errors.KafkaError):  # the futures know
                client.flush(left_s)
            if not left_s or all(future.is_done for future in futures):
                break
            time.sleep(min(left_s, frame.STEP_S))
        left = [place for place, future in enumerate(futures) if not future.succeeded()]
        if not left:
            return [], None
        failed = next((f.exception for f in futures if f.failed()), None)
        return left, failed or errors.KafkaTimeoutError(f"{len(left)} records not acknowledged")

    def _connected(self) -> KafkaProducer:
        if self._client is None:
            timeout_ms = round(self._settings.timeout_s * 1000)
            config = member.client_config(self._settings) | {
                "metrics_enabled": False,
                "request_timeout_ms": timeout_ms,
                "delivery_timeout_ms": 2 * timeout_ms,
                "max_block_ms": timeout_ms,
                "linger_ms": timeout_ms,  # flush ends it: records of one flush leave together
                "batch_size": frame.SMALL_TOPIC_BYTES - 16 * 1024,
                "max_request_size": self._settings.max_value_bytes + frame.RECORD_OVERHEAD_BYTES,
                "allow_auto_create_topics": False,
            }
            self._client = KafkaProducer(**config)
        return self._client

    def _drop(self) -> None:
        self._asks_again()
        client, self._client = self._client, None
        if client is None:
            return
        # 3.0.12's close flushes first and, where that fails, leaves its thread to itself.
        sender = client._sender  # noqa: SLF001  (nothing public ends it)
        sender.force_close()
        sender.join(self._settings.timeout_s)
        with suppress(errors.KafkaError):
            client.close(timeout=0)
