"""Minutes of a fleet on a log, read from a moment on that is known.

Every host opens an epoch, as it does once an hour, and reports in some windows. Before them lies
one window under earlier epochs: who has released that one has joined the group and waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer

from bench.record import CACHE
from bench.round_fleet import T0, WINDOW_S, Fleet, load_fleet, make_roster, make_task, sealed_chunks
from transport.kafka.kafka_frame import KafkaSettings
from transport.opening import Side, open_transport
from transport.port import (
    Consumer,
    ForwardingTransport,
    Record,
    Transport,
    create_topics,
    partition_of,
)
from wire.envelope import Kind, wrap
from wire.topics import EPOCHS, REPORTS

HOSTS: Final = 10_000
"""As many as 80,000 GPUs have: what a window costs by itself weighs as it does in a fleet."""
WINDOWS: Final = 5
EPOCHS_A_WINDOW: Final = 1 / 60
"""Of a host: it opens one an hour, and reports once a minute."""
HOUR: Final = T0 + 3600
NOW_S: Final = HOUR + (1 + WINDOWS) * WINDOW_S + 2
_AHEAD: Final = 10_000
"""Records that the producer may hold before the rest waits for it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One record that is to be written."""

    topic: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class HourOfReports:
    """What both roles are given, and what is written for them.

    before      a window with its epochs
    epochs      of the hour
    opening     the hour's first window: with it the Helper opens the epochs
    reports     of the windows after it
    """

    d: int
    signed_task: bytes
    roster: bytes
    before: Sequence[Message]
    epochs: Sequence[Message]
    opening: Sequence[Message]
    reports: Sequence[Message]


@cache
def hour_of_reports(d: int) -> HourOfReports:
    """Seal the reports, of d words."""
    earlier = load_fleet(HOSTS, CACHE / "scale-fleet-0", part=500)
    fleet = load_fleet(HOSTS, CACHE / "scale-fleet-1", part=500, begun=(HOUR, 2))
    signed_task = make_task(HOSTS, d)[2]
    starts = [HOUR + number * WINDOW_S for number in range(1 + WINDOWS)]
    before, hour = sealed(earlier, d, [T0]), sealed(fleet, d, starts)
    roster = make_roster(fleet, [d])
    parts = hour[:HOSTS], hour[HOSTS : 2 * HOSTS], hour[2 * HOSTS :]
    return HourOfReports(d, signed_task, roster, before, *parts)


def sealed(fleet: Fleet, d: int, starts: Sequence[int]) -> list[Message]:
    """The fleet's epochs, and its reports of the windows that start so."""
    task_id, task, _signed = make_task(len(fleet.hosts), d)
    found = [Message(EPOCHS, raw[16:48], wrap(Kind.EPOCH, raw)) for raw in fleet.raw]
    for start in starts:
        total = np.zeros(d, dtype=np.int64)
        hosts = iter(fleet.hosts)
        for chunk in sealed_chunks(fleet, task_id, task, start, total):
            found += [Message(REPORTS, next(hosts).host_id, record.value) for record in chunk]
    return found


class HeldConsumer:
    """A member of a group that reads nothing while a file is there."""

    def __init__(self, inner: Consumer, hold: Path) -> None:
        self._inner, self._hold = inner, hold

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Read on, or wait as if nothing were there."""
        if self._hold.exists():
            time.sleep(min(timeout_s, 0.01))
            return []
        return self._inner.poll(max_records, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class HeldTransport(ForwardingTransport):
    """A log whose consumers can be held."""

    def __init__(self, inner: Transport, hold: Path) -> None:
        super().__init__(inner)
        self._hold = hold

    def consumer(self, group: str, topics: Sequence[str]) -> Consumer:
        """Give a consumer that can be held."""
        held: Any = HeldConsumer(super().consumer(group, topics), self._hold)
        return held  # type: ignore[no-any-return]


class HourLog:
    """The log of one run."""

    def __init__(self, log: KafkaSettings) -> None:
        """Make the topics."""
        self._log = log
        with open_transport(log, Side.AGGREGATOR) as kafka:
            create_topics(kafka)
            self._partitions = {topic: kafka.partitions(topic) for topic in (EPOCHS, REPORTS)}
        self._producer = Producer({"bootstrap.servers": log.bootstrap[0], "linger.ms": 20})

    def write(self, messages: Sequence[Message]) -> None:
        """Write records, durably."""
        for number, message in enumerate(messages):
            self._producer.produce(
                self._log.named(message.topic),
                message.value,
                message.key,
                partition_of(message.key, self._partitions[message.topic]),
            )
            if number % _AHEAD == _AHEAD - 1:
                self._producer.flush()
        self._producer.flush()
