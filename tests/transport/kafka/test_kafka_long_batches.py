"""A topic that takes less than the clients' batches: records go in parts that fit, each once."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from pointillist.broker.local import RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.transport.conformance import TOPIC, read_until
from transport.factory import Side, open_transport
from transport.interface import RecordTooLarge

pytestmark = pytest.mark.kafka

TAKES_BYTES, RECORD_BYTES, RECORDS = 40_000, 3_000, 60


@pytest.mark.parametrize("side", Side)
def test_long_batch_goes_in_parts_and_a_longer_record_is_named(
    broker: RunningBroker, side: Side
) -> None:
    settings = plain_settings(broker, fresh_prefix())
    with open_transport(settings, side) as log:
        log.create_topic(TOPIC, 2)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        change = ConfigEntry(
            "max.message.bytes", str(TAKES_BYTES), incremental_operation=AlterConfigOpType.SET
        )
        name = settings.named(TOPIC)
        topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        for done in admin.incremental_alter_configs([topic]).values():
            done.result()
        if side is Side.AGENT:  # what it would spend budget on, it asks about before
            assert RECORD_BYTES < log.longest(TOPIC) < TAKES_BYTES
        producer = log.producer()
        values = [b"%06d" % number + bytes(RECORD_BYTES) for number in range(RECORDS)]
        for number, value in enumerate(values):
            producer.send(TOPIC, b"%d" % (number % 7), value)
            if number == RECORDS // 2:
                producer.send(TOPIC, b"long", bytes(2 * TAKES_BYTES))
        with pytest.raises(RecordTooLarge, match=f"{TOPIC}: expected .* got 1 of up to") as refusal:
            producer.flush()
        assert [one.key for one in refusal.value.refused] == [b"long"]
        producer.send(TOPIC, b"k", b"after")
        producer.close()
        consumer = log.consumer("g", [TOPIC])
        found = [record.value for record in read_until(consumer, RECORDS + 1)]
        consumer.close()
    assert sorted(found) == sorted([*values, b"after"])
