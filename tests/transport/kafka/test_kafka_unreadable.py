"""Batches in each codec, and ones that a disk has spoilt: both clients read what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from pointillist.broker.local import BrokerOptions, LocalBroker, RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.transport.conformance import TOPIC, read_until
from transport.factory import Side, open_transport
from transport.interface import Noted
from transport.kafka.kafka_frame import KafkaSettings

pytestmark = pytest.mark.kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCHES, OF = 4, 5
SPOILT = (1, 3)
HEAD_BYTES = 61  # of a batch, before its records


def make_topic(settings: KafkaSettings, codec: str) -> str:
    """A topic that keeps batches as they come, with BATCHES of OF records; a record's value."""
    with open_transport(settings, Side.AGGREGATOR) as log:
        log.create_topic(TOPIC, 1)
    bootstrap: dict[str, Any] = {"bootstrap.servers": settings.bootstrap[0], "log_level": 0}
    change = ConfigEntry(
        "compression.type", "producer", incremental_operation=AlterConfigOpType.SET
    )
    name = settings.named(TOPIC)
    topic = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
    admin = AdminClient(bootstrap)
    for done in admin.incremental_alter_configs([topic]).values():
        done.result()
    producer = Producer(bootstrap | {"compression.type": codec, "linger.ms": 60_000})
    for batch in range(BATCHES):
        for number in range(OF):
            producer.produce(name, b"%d-%d" % (batch, number) + bytes(300), b"k")
        producer.flush()
    return name


@pytest.mark.parametrize("codec", CODECS)
def test_agent_reads_every_codec(broker: RunningBroker, codec: str) -> None:
    settings = plain_settings(broker, fresh_prefix())
    make_topic(settings, codec)
    with open_transport(settings, Side.AGENT) as log:
        consumer = log.consumer("g", [TOPIC])
        found = [record.value for record in read_until(consumer, BATCHES * OF)]
        assert found == [
            b"%d-%d" % (batch, n) + bytes(300) for batch in range(BATCHES) for n in range(OF)
        ]
        assert consumer.notes() == []
        consumer.close()


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KafkaSettings]]:
    """Of each codec a topic in which two batches are not as they were written: codec -> where."""
    folder = tmp_path_factory.mktemp("spoilt")
    with LocalBroker(folder / "kafka", BrokerOptions(heap_mib=256)) as local:
        running = local.start()
        named = {codec: make_topic(plain_settings(running, f"{codec}."), codec) for codec in CODECS}
        local.stop()
        for name in named.values():
            (path,) = Path(folder).rglob(f"{name}-0/{0:020}.log")
            spoil(path)
        running = local.start()
        yield {codec: plain_settings(running, f"{codec}.", timeout_s=1.0) for codec in named}


def spoil(path: Path) -> None:
    raw, at = bytearray(path.read_bytes()), 0
    for batch in range(BATCHES):
        if batch in SPOILT:
            raw[at + HEAD_BYTES + 1] ^= 0xFF
        at += 12 + int.from_bytes(raw[at + 8 : at + 12], "big")
    assert at == len(raw)
    path.write_bytes(raw)


@pytest.mark.release
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("codec", CODECS)
def test_spoilt_batches_are_passed_over_and_noted_once(
    spoilt: dict[str, KafkaSettings], side: Side, codec: str
) -> None:
    """The last one, too: what comes after it is read."""
    whole = [batch for batch in range(BATCHES) if batch not in SPOILT]
    with open_transport(spoilt[codec], side) as log:
        consumer = log.consumer(f"of-{side.value}", [TOPIC])
        found = [record.value[0] - ord("0") for record in read_until(consumer, len(whole) * OF)]
        assert found == [batch for batch in whole for _ in range(OF)]
        for _ in range(40):
            assert consumer.poll(100, 0.1) == []
            if consumer.lag() == 0:
                break
        assert consumer.lag() == 0
        assert consumer.positions() == {(TOPIC, 0): BATCHES * OF}
        noted = consumer.notes()
        assert [note.noted for note in noted] == [Noted.UNREADABLE] * len(SPOILT)
        for note, batch in zip(noted, SPOILT, strict=True):
            assert f"{TOPIC}/0, offset {batch * OF}:" in note.detail
        consumer.close()
