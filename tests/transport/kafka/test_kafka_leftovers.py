"""What a client of an absent broker leaves behind: nothing, however often it is tried."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from transport.interface import TransportUnavailable
from transport.kafka.kafka_agent import AgentKafka
from transport.kafka.kafka_frame import KafkaSettings

TRIES = 4
NOBODY = KafkaSettings(("127.0.0.1:1",), timeout_s=0.1)


class KnownTopics(AgentKafka):
    """As after an earlier look at the broker, which is gone now."""

    def partitions(self, topic: str) -> int:
        return 1


def look_up() -> None:
    AgentKafka(NOBODY).partitions("t")


def read() -> None:
    KnownTopics(NOBODY).consumer("g", ["t"])


def send() -> None:
    producer = KnownTopics(NOBODY).producer()
    producer.send("t", b"k", b"v")
    producer.flush()


@pytest.mark.parametrize("attempt", [look_up, read, send])
def test_attempts_without_a_broker_leave_no_thread(
    attempt: Callable[[], None],
) -> None:
    counts = []
    for _ in range(TRIES):
        with pytest.raises(TransportUnavailable):
            attempt()
        counts.append(threading.active_count())
    assert counts[-1] <= counts[0]
