"""Where a cluster lets a stranger write in transactions: nothing waits for their end."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer as KafkaProducer

from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from transport.factory import Side, open_transport
from transport.interface import Consumer
from transport.kafka.kafka_frame import KafkaSettings

pytestmark = pytest.mark.kafka

TOPIC = "reports"


def begun(settings: KafkaSettings) -> KafkaProducer:
    """A stranger's transaction with one record, which has not ended."""
    stranger = KafkaProducer({
        "bootstrap.servers": ",".join(settings.bootstrap),
        "transactional.id": settings.named("stranger"),
    })  # fmt: skip
    stranger.init_transactions(60)
    stranger.begin_transaction()
    stranger.produce(settings.named(TOPIC), b"theirs", b"k")
    stranger.flush(10)
    return stranger


def read(consumer: Consumer, wanted: int) -> list[bytes]:
    """What it gives, until nothing is left to read."""
    found: list[bytes] = []
    until_s = time.monotonic() + 15
    while time.monotonic() < until_s and (len(found) < wanted or consumer.lag() != 0):
        found += [record.value for record in consumer.poll(10, 0.2)]
    assert consumer.lag() == 0
    return found


@pytest.mark.timeout(120)
def test_transaction_of_a_stranger_holds_up_nothing(broker: RunningBroker) -> None:
    settings = plain_settings(broker, fresh_prefix())
    with open_transport(settings, Side.AGGREGATOR) as kafka:
        kafka.create_topic(TOPIC, 1)
        producer, consumer = kafka.producer(), kafka.consumer("leader", [TOPIC])
        stranger = begun(settings)
        producer.send(TOPIC, b"k", b"ours")
        producer.flush()
        assert read(consumer, 2) == [b"theirs", b"ours"]  # it is open
        stranger.commit_transaction(30)
        assert read(consumer, 0) == []  # its mark is the end of the log
        consumer.close()
        consumer = kafka.consumer("leader", [TOPIC])
        assert read(consumer, 2) == [b"theirs", b"ours"]
        producer.send(TOPIC, b"k", b"more")
        producer.flush()
        assert read(consumer, 1) == [b"more"]
        consumer.close()
        producer.close()
