"""Both Kafka clients against a real broker: the contract of all transports."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient

from pointillist.broker.local import RunningBroker
from tests.transport.conformance import (
    PARTITIONS,
    TOPIC,
    TransportConformance,
    TransportFactory,
)
from tests.wait_kit import until
from transport.factory import Side, open_transport
from transport.interface import Transport
from transport.kafka.kafka_frame import KafkaSettings

pytestmark = pytest.mark.kafka


@dataclass(frozen=True)
class KafkaFactory:
    """A corner of the shared broker; members are soon replaced."""

    bootstrap: str
    prefix: str
    side: Side
    max_value_bytes: int = 2 << 20

    def open(self) -> Transport:
        settings = KafkaSettings(
            (self.bootstrap,),
            prefix=self.prefix,
            lease_s=1.5,
            idle_read_s=0.1,
            max_value_bytes=self.max_value_bytes,
        )
        return open_transport(settings, self.side)

    def make_anew(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        name = self.prefix + TOPIC
        for gone in admin.delete_topics([name]).values():
            gone.result()
        until(lambda: name not in admin.list_topics(timeout=5).topics)
        with self.open() as log:
            log.create_topic(TOPIC, PARTITIONS)


class TestAgentKafkaConformance(TransportConformance):
    @pytest.fixture
    def factory(self, broker: RunningBroker) -> TransportFactory:
        return KafkaFactory(broker.bootstrap, f"{os.urandom(4).hex()}.", Side.AGENT)


class TestAggregatorKafkaConformance(TransportConformance):
    @pytest.fixture
    def factory(self, broker: RunningBroker) -> TransportFactory:
        return KafkaFactory(broker.bootstrap, f"{os.urandom(4).hex()}.", Side.AGGREGATOR)
