"""Topics that no broker shows yet, that somebody deletes, or to which somebody adds partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import create_autospec

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.wait_kit import until
from transport.factory import Side, open_transport
from transport.interface import Consumer, TransportUnavailable
from transport.kafka import kafka_agent_consumer, kafka_frame
from transport.kafka.kafka_aggregator import AggregatorKafka, KafkaOffsets
from transport.kafka.kafka_aggregator_client import failures
from transport.kafka.kafka_frame import FoundTopic, KafkaSettings


class SlowToShow(AggregatorKafka):
    """A cluster that takes the topic and does not show it."""

    @contextmanager
    def _admin(self) -> Iterator[AdminClient]:
        with failures(self.settings, self._last):
            yield create_autospec(AdminClient, instance=True)

    def _answer(self, admin: AdminClient, asked: Any, name: str) -> Any:
        return None

    def _look_up(self, admin: AdminClient, topic: str) -> FoundTopic | None:
        return None


def test_topic_that_no_broker_shows_in_time_is_the_worlds_failure() -> None:
    kafka = SlowToShow(KafkaSettings(("127.0.0.1:1",), timeout_s=0.1))
    with pytest.raises(TransportUnavailable, match="no broker shows topic t"):
        kafka.create_topic("t", 1)


def read_some(consumer: Consumer, least: int) -> list[bytes]:
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(one.value for one in consumer.poll(100, 0.2))
        return len(found) >= least

    until(enough)
    return found


@pytest.mark.kafka
@pytest.mark.release
@pytest.mark.parametrize("side", list(Side))
def test_topic_that_is_deleted_is_waited_for(broker: RunningBroker, side: Side) -> None:
    """A sender says which topic is away, and sends the same record once it is made again."""
    settings = plain_settings(broker, fresh_prefix(), timeout_s=2.0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with open_transport(settings, side) as log:
        log.create_topic("t", 1)
        producer = log.producer()
        producer.send("t", b"k", b"before")
        producer.flush()
        admin.delete_topics([settings.named("t")])[settings.named("t")].result()
        until(lambda: settings.named("t") not in admin.list_topics(timeout=5).topics)
        producer.send("t", b"k", b"waits")
        for _ in range(2):
            with pytest.raises(TransportUnavailable):
                producer.flush()
        with pytest.raises(TransportUnavailable, match=settings.named("t")):
            producer.send("t", b"k", b"not taken")
        log.create_topic("t", 1)
        producer.flush()
        producer.close()
        consumer = log.consumer("g", ["t"])
        found = read_some(consumer, 1)
        consumer.close()
    assert found == [b"waits"]


@pytest.mark.kafka
@pytest.mark.release
@pytest.mark.parametrize("side", list(Side))
def test_partitions_that_are_added_are_read_and_a_sender_goes_on(
    broker: RunningBroker, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read twice, and no log is taken for another, or a shorter one."""
    monkeypatch.setattr(kafka_frame, "LOOK_S", 1.0)
    monkeypatch.setattr(kafka_agent_consumer, "_METADATA_S", 1)
    settings = plain_settings(broker, fresh_prefix())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with open_transport(settings, side) as log, open_transport(settings, side) as other:
        for topic, partitions in (("t", 2), ("single", 1)):
            log.create_topic(topic, partitions)
        consumer, sender = log.consumer("g", ["t", "single"]), log.producer()

        def read(*expected: bytes) -> None:
            assert sorted(read_some(consumer, len(expected))) == sorted(expected)
            assert consumer.notes() == []

        def send(word: bytes) -> list[bytes]:
            producer = sender if word == b"known" else other.producer()
            values = [b"%s %d" % (word, number) for number in range(20)]
            for number, value in enumerate(values):
                producer.send("t", b"key %d" % number, value)
            producer.flush()
            return values

        read(*send(b"known"))
        consumer.commit(consumer.positions())
        more = [NewPartitions(settings.named("t"), 5), NewPartitions(settings.named("single"), 3)]
        offsets = KafkaOffsets(settings, "g", "t")
        assert len(offsets.bounds()) == 2
        for added in admin.create_partitions(more).values():
            added.result()
        offsets.identity()
        assert len(offsets.bounds()) == 5
        offsets.close()
        read(*send(b"more"))
        read(*send(b"known"))
        until(lambda: consumer.poll(1, 0.2) == [] and len(consumer.positions()) == 5 + 3)
        consumer.close()
        sender.close()
