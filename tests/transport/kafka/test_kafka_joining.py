"""Members are let in, and know what they have not read, on a busy machine and after an outage."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from pointillist.broker.local import RunningBroker, free_ports
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.transport.conformance import PARTITIONS, TOPIC, append, poll_until, read_until
from tests.wait_kit import until
from transport.factory import Side, open_transport
from transport.interface import Noted, TransportUnavailable
from transport.kafka.kafka_aggregator_consumer import AggregatorConsumer
from transport.kafka.kafka_frame import KafkaSettings

pytestmark = pytest.mark.kafka

MEMBERS = 10
POLLS = 8


def test_members_that_poll_without_waiting_are_given_what_there_is(broker: RunningBroker) -> None:
    settings = replace(plain_settings(broker), prefix=fresh_prefix())
    with open_transport(settings, Side.AGENT) as log:
        producer = log.producer()
        for topic in ("tasks", "rosters"):
            log.create_topic(topic, 1)
            producer.send(topic, b"key", b"value")
        producer.close()
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(read(settings, name)))
        for name in range(MEMBERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * MEMBERS


def read(settings: KafkaSettings, name: int) -> int:
    """Be an agent that looks once a second, in a group of its own."""
    records = 0
    pause = threading.Event()
    with open_transport(settings, Side.AGENT) as log:
        consumer = log.consumer(f"member-{name}", ("tasks", "rosters"))
        for _ in range(POLLS):
            records += len(consumer.poll(100, 0.0))
            if records == 2:
                break
            pause.wait(1.2)
        consumer.close()
    return records


def test_client_after_an_outage_is_given_its_own_time_to_join() -> None:
    """Each that gives up leaves a member behind, for whom the next one would have to wait."""
    (port,) = free_ports(1)
    settings = KafkaSettings((f"127.0.0.1:{port}",), timeout_s=0.1)
    consumer = AggregatorConsumer(settings, "g", [TOPIC], lambda _topic: "")
    assert consumer.poll(1, 0.0) == []
    consumer._joined_s -= 2 * settings.join_limit_s
    with pytest.raises(TransportUnavailable):
        consumer.poll(1, 0.0)
    assert consumer.poll(1, 0.0) == []
    consumer.close()


@pytest.mark.parametrize("side", Side)
def test_commit_of_an_earlier_program_is_taken_over_unless_the_log_is_shorter(
    broker: RunningBroker, side: Side
) -> None:
    """It does not say of which log it is."""
    settings = plain_settings(broker, fresh_prefix())
    with open_transport(settings, side) as log:
        log.create_topic(TOPIC, 1)
        append(log, 40)
        for group, offset, found, noted in (
            ("within", 30, range(30, 40), []),
            ("beyond", 400, range(40), [Noted.SHORTER]),
        ):
            told = {"bootstrap.servers": broker.bootstrap, "group.id": settings.named(group)}
            earlier, slot = Consumer(told), TopicPartition(settings.named(TOPIC), 0, offset)
            until(partial(committed, earlier, slot))
            consumer = log.consumer(group, [TOPIC])
            assert [record.offset for record in read_until(consumer, len(found))] == [*found]
            assert [note.noted for note in consumer.notes()] == noted
            consumer.close()


@pytest.mark.parametrize("side", Side)
def test_commit_of_another_log_counts_for_nothing(broker: RunningBroker, side: Side) -> None:
    """Also where the log of now is longer."""
    settings = plain_settings(broker, fresh_prefix())
    with open_transport(settings, side) as log:
        log.create_topic(TOPIC, 1)
        append(log, 40)
        told = {"bootstrap.servers": broker.bootstrap, "group.id": settings.named("g")}
        slot = TopicPartition(settings.named(TOPIC), 0, 30, metadata="the one before")
        until(partial(committed, Consumer(told), slot))
        consumer = log.consumer("g", [TOPIC])
        found: set[bytes] = set()
        poll_until([consumer], lambda: len(found) == 40, found)
        assert [note.noted for note in consumer.notes()] == [Noted.ANEW]
        consumer.close()


def committed(client: Consumer, slot: TopicPartition) -> bool:
    """Commit, once the group's coordinator is there."""
    with suppress(KafkaException):
        client.commit(offsets=[slot], asynchronous=False)
        return True
    return False


def test_after_a_complaint_all_is_counted_that_the_log_has(broker: RunningBroker) -> None:
    """A partition whose broker was away may be fetched again later than others."""
    with open_transport(plain_settings(broker, fresh_prefix()), Side.AGGREGATOR) as log:
        log.create_topic(TOPIC, PARTITIONS)
        append(log, 40)
        consumer = log.consumer("g", [TOPIC])
        assert isinstance(consumer, AggregatorConsumer)
        read_until(consumer, 40)
        assert consumer._client is not None
        consumer._client.pause(consumer._client.assignment())
        append(log, 40, first=40)
        consumer._last.error = KafkaError(KafkaError._TRANSPORT)
        assert consumer.poll(100, 0.1) == []
        assert consumer.lag() == 40
        consumer.close()
