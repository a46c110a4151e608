"""Kafka for aggregators and simulators (confluent-kafka, C): many messages at little CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from transport.interface import Outgoing, Record

from . import kafka_aggregator_client as rdkafka
from . import kafka_aggregator_consumer as member
from . import kafka_frame as frame


class AggregatorKafka(frame.KafkaFrame[AdminClient]):
    """An aggregator's access to a cluster; one administrator, kept until `close`."""

    def __init__(self, settings: frame.KafkaSettings) -> None:
        super().__init__(settings)
        self._last = rdkafka.LastError()
        self._admin_client: AdminClient | None = None

    def producer(self) -> AggregatorProducer:
        return AggregatorProducer(self)

    def close(self) -> None:
        if self._admin_client is not None:
            held, self._admin_client = [self._admin_client], None
            rdkafka.end(held, self.settings.timeout_s)

    def _consumer(self, group: str, topics: Sequence[str]) -> member.AggregatorConsumer:
        return member.AggregatorConsumer(self.settings, group, topics, self.identity)

    @contextmanager
    def _admin(self) -> Iterator[AdminClient]:
        with rdkafka.failures(self.settings, self._last):
            if self._admin_client is None:
                self._admin_client = AdminClient(rdkafka.client_config(self.settings, self._last))
            yield self._admin_client

    def _answer(self, admin: AdminClient, asked: dict[str, Future[Any]], name: str) -> Any:
        """Wait for an answer; the client's own callbacks are served meanwhile."""
        deadline = time.monotonic() + self.settings.timeout_s
        # A future holds its failure and that our frames, which hold the client: no frame holds it.
        while not (done := asked[name].done()) and time.monotonic() < deadline:
            admin.poll(0.0)
            wait([asked[name]], frame.STEP_S)
        if not done:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time"))
        return asked.pop(name).result()

    def _look_up(self, admin: AdminClient, topic: str) -> frame.FoundTopic | None:
        name = self.settings.named(topic)
        wanted = TopicCollection([name])
        asked = admin.describe_topics(wanted, request_timeout=self.settings.timeout_s)
        try:
            found = self._answer(admin, asked, name)
            return frame.FoundTopic(len(found.partitions), str(found.topic_id))
        except KafkaException as failure:
            if failure.args[0].code() in rdkafka.UNKNOWN:
                return None
            raise

    def _operations(
        self, admin: AdminClient, names: Sequence[str]
    ) -> dict[str, frozenset[str] | None]:
        asked = admin.describe_topics(
            TopicCollection(list(names)),
            include_authorized_operations=True,
            request_timeout=self.settings.timeout_s,
        )
        return self._allowed(admin, asked)

    def group_operations(self, groups: Sequence[str]) -> dict[str, frozenset[str] | None]:
        named = {self.settings.named(group): group for group in groups}
        with self._admin() as admin:
            asked = admin.describe_consumer_groups(
                list(named),
                include_authorized_operations=True,
                request_timeout=self.settings.timeout_s,
            )
            told = self._allowed(admin, asked)
        return {named[name]: operations for name, operations in told.items()}

    def _allowed(
        self, admin: AdminClient, asked: dict[str, Future[Any]]
    ) -> dict[str, frozenset[str] | None]:
        found: dict[str, frozenset[str] | None] = {}
        for name in list(asked):
            try:
                told = self._answer(admin, asked, name).authorized_operations
                found[name] = None if told is None else frozenset(one.name for one in told)
            except KafkaException as failure:
                code = failure.args[0].code()
                if rdkafka.REFUSALS.get(code) is frame.Refusal.RIGHTS:
                    found[name] = frozenset()
                elif code not in rdkafka.UNKNOWN:
                    raise
        return found

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
                moved = failure.args[0].code() in rdkafka.MOVED
                if not moved or time.monotonic() > deadline:
                    raise
            time.sleep(frame.STEP_S)

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
            if code in rdkafka.REFUSALS:
                raise frame.may_not_create(name) from failure
            if code != KafkaError.TOPIC_ALREADY_EXISTS:  # by another process, this moment
                raise
        deadline = time.monotonic() + settings.timeout_s
        while self._look_up(admin, topic) is None:
            if time.monotonic() > deadline:
                late = KafkaError(KafkaError._TIMED_OUT, f"no broker shows topic {name} in time")
                raise KafkaException(late)
            time.sleep(frame.STEP_S)


class AggregatorProducer(frame.BufferedProducer):
    """Connects at the first flush."""

    def __init__(self, kafka: AggregatorKafka) -> None:
        super().__init__(kafka)
        self._last = rdkafka.LastError()
        self._client: Producer | None = None

    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        left = set(range(len(records)))
        failed: list[KafkaError] = []

        def settle(place: int) -> Callable[[KafkaError | None, Message], None]:
            # Not `partial`: it raises SystemError where the client ends with a fatal error.
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
                    self._settings.named(record.topic),
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
        told = [refusal for refusal in failed if refusal.code() not in rdkafka.PURGED]
        first = (told or [late])[0]
        places = sorted(left)
        self._drop()
        return places, rdkafka.mapped(self._settings, self._last.why(first))

    def _connected(self) -> Producer:
        if self._client is None:
            self._last = rdkafka.LastError()
            config = rdkafka.client_config(self._settings, self._last) | {
                "enable.idempotence": True,
                "compression.type": "none",
                # A batch leaves when it is flushed: its records belong together.
                "linger.ms": 60_000,
                "batch.size": frame.SMALL_TOPIC_BYTES - 16 * 1024,
                "batch.num.messages": 10_000,
                "message.max.bytes": self._settings.max_value_bytes + frame.RECORD_OVERHEAD_BYTES,
                "message.timeout.ms": 120_000,
            }
            self._client = Producer(config)
        return self._client

    def _drop(self) -> None:
        self._asks_again()
        if self._client is not None:
            held, self._client = [self._client], None
            held[0].purge()
            held[0].flush(0)
            rdkafka.end(held, self._settings.timeout_s)


_READ_AT_ONCE: Final = 500
_POLL_S: Final = 0.1


class KafkaOffsets:
    """What a group has committed, and what lies where; every method raises TransportUnavailable."""

    def __init__(self, settings: frame.KafkaSettings, group: str, topic: str) -> None:
        """Connect with the first question, for a group that may have no members then."""
        self._settings, self._topic = settings, topic
        self._kafka, self._log, self._partitions = AggregatorKafka(settings), "", 0
        self._last = rdkafka.LastError()
        self._config = {
            "group.id": settings.named(group),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # as the group's members read
            "fetch.message.max.bytes": settings.max_value_bytes + frame.RECORD_OVERHEAD_BYTES,
        }
        self._client: Consumer | None = None

    def _open(self) -> Consumer:
        if self._client is None:
            self._client = Consumer(
                rdkafka.client_config(self._settings, self._last) | self._config
            )
        return self._client

    def _slot(self, partition: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._settings.named(self._topic), partition, offset)

    def identity(self) -> str:
        """Which log of that name it is; what is committed from then on is said to be of it."""
        self._log = self._kafka.identity(self._topic)
        return self._log

    def bounds(self) -> dict[int, tuple[int, int]]:
        """The oldest and the next offset of each partition that `identity` saw."""
        partitions = self._kafka.partitions(self._topic)
        if partitions != self._partitions:  # a client knows those that there were when it began
            self._drop()
            self._partitions = partitions
        with rdkafka.failures(self._settings, self._last):
            client, timeout_s = self._open(), self._settings.timeout_s
            return {
                part: rdkafka.watermarks(client, self._slot(part), timeout_s)
                for part in range(partitions)
            }

    def starts(self) -> dict[int, int]:
        """Where the group goes on: at its commit, if it is of this log, or where the log begins."""
        bounds = self.bounds()
        with rdkafka.failures(self._settings, self._last):
            slots = [self._slot(part) for part in bounds]
            found = self._open().committed(slots, timeout=self._settings.timeout_s)
        return {slot.partition: self._start(slot, *bounds[slot.partition]) for slot in found}

    def _start(self, committed: TopicPartition, low: int, high: int) -> int:
        other = committed.metadata and self._log and committed.metadata != self._log
        return low if other or committed.offset > high else max(committed.offset, low)

    def commit(self, offsets: Mapping[int, int]) -> None:
        name = self._settings.named(self._topic)
        slots = [TopicPartition(name, *place, metadata=self._log) for place in offsets.items()]
        with rdkafka.failures(self._settings, self._last):
            for slot in self._open().commit(offsets=slots, asynchronous=False) or []:
                if slot.error is not None:
                    raise KafkaException(slot.error)

    def read(self, partition: int, offsets: Collection[int]) -> list[Record]:
        """Read single records; those that the log has no longer are not among them."""
        left, found = set(offsets), list[Record]()
        with rdkafka.failures(self._settings, self._last):
            oldest, _next = rdkafka.watermarks(
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
        self._kafka.close()
        self._drop()

    def _drop(self) -> None:
        if self._client is not None:
            held, self._client = [self._client], None
            rdkafka.end(held, self._settings.timeout_s)
