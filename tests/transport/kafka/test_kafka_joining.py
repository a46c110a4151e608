"""Members are let in, and know what they have not read, on a busy machine and after an outage."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError

from pointillist.broker.local import RunningBroker, free_ports
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.transport.conformance import PARTITIONS, TOPIC, append, read_until
from transport.factory import Side, open_transport
from transport.interface import TransportUnavailable
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
