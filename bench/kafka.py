"""A plain reader of Kafka: what reading a log takes at least."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer

from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import REPORTS


def bare_rate(log: KafkaSettings, n: int) -> tuple[float, float]:
    """Read n reports with librdkafka alone; (reports a second, CPU microseconds a report)."""
    config: dict[str, Any] = {
        "bootstrap.servers": log.bootstrap[0], "group.id": log.named("bare"),
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(config)
    consumer.subscribe([log.named(REPORTS)])
    left = n
    while not consumer.assignment():
        left -= consumer.poll(0.01) is not None
    start, cpu = time.perf_counter(), time.process_time()
    while left:
        left -= len(consumer.consume(min(2000, left), 0.1))
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    consumer.close()
    return n / wall, used / n * 1e6
