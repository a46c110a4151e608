"""Members that poll without waiting, as agents do, get their partitions on a busy machine too."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from transport.kafka_settings import KafkaSettings
from transport.opening import Side, open_transport

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
