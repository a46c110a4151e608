"""How members leave: at once, and in bounded time whatever the client or the broker does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from pointillist.broker.local import LocalBroker, RunningBroker
from tests.kafka_kit import fresh_prefix, plain_settings, wait_until_led
from tests.probes_kit import compile_stub
from tests.transport.conformance import PARTITIONS, TOPIC, append, read_until
from transport.factory import Side, open_transport
from transport.interface import Consumer, TransportUnavailable
from transport.kafka.kafka_agent_consumer import AgentConsumer
from transport.kafka.kafka_aggregator_consumer import AggregatorConsumer

pytestmark = pytest.mark.kafka

HERE = Path(__file__).parent
HANG_S = 60
"""Beyond it a program hangs: what it does takes a tenth of that."""


def joined(broker: RunningBroker, side: Side, prefix: str, timeout_s: float = 5.0) -> Consumer:
    """A member of the group `g` that has read what there is."""
    log = open_transport(plain_settings(broker, prefix, timeout_s), side)
    log.create_topic(TOPIC, PARTITIONS)
    append(log, 40)
    consumer = log.consumer("g", [TOPIC])
    read_until(consumer, 40)
    log.close()
    return consumer


def program(moment: str, broker: RunningBroker, side: Side) -> list[str]:
    """The command that leaves a group in a bad moment."""
    name = "tests.transport.kafka.leaving_members"
    return [sys.executable, "-m", name, moment, broker.bootstrap, fresh_prefix(), side.value]


def rdkafka_threads() -> int:
    """Count librdkafka's threads in this process."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("rdk:") for name in names)


@pytest.mark.release
def test_replaced_members_leave_while_revocations_wait(
    broker: RunningBroker, tmp_path: Path
) -> None:
    library = tmp_path / "hold_broadcast.so"
    compile_stub("-shared", "-fPIC", HERE / "hold_broadcast.c", "-o", library, "-ldl")
    done = subprocess.run(
        program("replaced", broker, Side.AGGREGATOR),
        env={**os.environ, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert done.stdout == "left\n"


@pytest.mark.parametrize("side", Side)
def test_member_that_left_is_no_member_of_the_group(broker: RunningBroker, side: Side) -> None:
    prefix = fresh_prefix()
    consumer = joined(broker, side, prefix)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def members() -> int:
        asked = admin.describe_consumer_groups([f"{prefix}g"], request_timeout=10)
        return len(asked[f"{prefix}g"].result().members)

    assert members() == 1
    consumer.close()
    assert members() == 0


def test_closed_transport_leaves_no_client(broker: RunningBroker) -> None:
    before = rdkafka_threads()
    consumer = joined(broker, Side.AGGREGATOR, fresh_prefix())
    assert rdkafka_threads() > before
    consumer.close()
    assert rdkafka_threads() == before


def test_client_of_a_failed_poll_is_ended(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, prefix = rdkafka_threads(), fresh_prefix()
    consumer = joined(broker, Side.AGGREGATOR, prefix)
    assert isinstance(consumer, AggregatorConsumer)

    def fail(_message: Message) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "planted"))

    monkeypatch.setattr(consumer, "_record", fail)
    with open_transport(plain_settings(broker, prefix), Side.AGENT) as log:
        append(log, 1)
    with pytest.raises(TransportUnavailable) as caught:
        read_until(consumer, 1)
    assert rdkafka_threads() == before
    assert "planted" in str(caught.value)


def test_agent_is_not_held_up_by_a_client_that_stands_still(broker: RunningBroker) -> None:
    consumer = joined(broker, Side.AGENT, fresh_prefix(), timeout_s=0.5)
    assert isinstance(consumer, AgentConsumer)
    released = threading.Event()
    consumer._client._client._net.call_soon_threadsafe(released.wait)
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(HANG_S)
    held_up = closing.is_alive()
    released.set()
    assert not held_up


@pytest.mark.release
@pytest.mark.parametrize("side", Side)
def test_frozen_broker_holds_nobody(
    local_broker: LocalBroker, broker: RunningBroker, side: Side
) -> None:
    command = program("frozen", broker, side)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "joined\n"
            local_broker.freeze()
            told, _ = child.communicate("leave\n", timeout=HANG_S)
        finally:
            local_broker.thaw()
            child.kill()
    wait_until_led(broker)
    assert told == "left\n"
