"""How a member leaves its group in bounded time, whatever state it is in.

`Consumer.close()` is never called. It ends the group as soon as one waiting revocation is answered.
A second one then asks a group that is gone: librdkafka (2.16) drops the question, and
confluent-kafka waits for the answer without end and with the interpreter's lock held, where no
signal, thread or time limit of this process reaches it. A member that was replaced has two waiting:
that of the new division and that of its own leaving. Here revocations are served while the group
answers, and the client is let go without closing, which serves none.
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from .closing import close_within

_STEP_S: Final = 0.005
_MOST_RECORDS: Final = 10_000
_SENT_S: Final = 1.0
"""For a round trip behind the request to leave: by then that one was sent, answered or not."""


def leave(held: list[Consumer], topic: str, timeout_s: float) -> None:
    """Leave the group and end the client, in at most about twice `timeout_s`.

    held        the client's last reference, which is taken away
    topic       one of its topics, as the cluster calls it
    """
    with suppress(KafkaException):
        _ask_to_leave(held[0], topic, timeout_s)
    end(held, timeout_s)


def end(held: MutableSequence[Any], timeout_s: float) -> None:
    """End a client by taking away its last reference; it holds no lock of the interpreter then."""
    close_within(timeout_s, held.clear)


def _ask_to_leave(client: Consumer, topic: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    client.unsubscribe()
    # The member's name goes as the request to leave is queued.
    while client.memberid() and time.monotonic() < deadline:
        with suppress(KafkaException):
            client.consume(_MOST_RECORDS, _STEP_S)
    # The coordinator's connection keeps its order.
    client.committed([TopicPartition(topic, 0)], timeout=min(_SENT_S, timeout_s))
