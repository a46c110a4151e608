"""`make bench-kafka`: what a real broker costs agents and the Leader, beside bare clients.

One broker, its clients and the demo share the machine. Every part runs several times, interleaved
with its bare counterpart; the median counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer as BareConsumer
from kafka import KafkaProducer

from aggregator.leader.leader_events import ReportsArrived
from bench.record import CACHE, Figure, write_result
from bench.round_fleet import T0, WINDOW_S, load_fleet, sealed_chunks
from bench.round_work import Pair
from pointillist.broker.local import BrokerOptions, LocalBroker
from transport.kafka.kafka_settings import KafkaSettings
from transport.opening import Side, open_transport
from transport.port import Record, create_topics
from wire.envelope import unwrap
from wire.topics import REPORTS

D: Final = 1000
HOSTS: Final = 2000
REPEATS: Final = 6
PUBLISHED: Final = 100
COMMAND: Final = "make bench-kafka"
DEMO: Final = ("--kafka", "--hosts", "300", "--windows", "12", "--opendp-hosts", "10", "--json")


def settings(bootstrap: str, number: int) -> KafkaSettings:
    """A corner of the broker for one repeat."""
    return KafkaSettings((bootstrap,), prefix=f"bench{number}.")


def fill(log: KafkaSettings, values: Sequence[bytes]) -> None:
    """Create the topics and put a window's reports there."""
    with open_transport(log, Side.AGGREGATOR) as kafka:
        create_topics(kafka)
        producer = kafka.producer()
        for value in values:
            producer.send(REPORTS, unwrap(value, len(value))[1][:16], value)
        producer.close()


def leader_rate(log: KafkaSettings, pair: Pair, window: int, n: int) -> tuple[float, float]:
    """Read and admit a window's reports; (reports a second, CPU microseconds a report)."""
    now_s = float(window + WINDOW_S + 2)
    with open_transport(log, Side.AGGREGATOR) as kafka:
        consumer = kafka.consumer("leader", [REPORTS])
        before = pair.leader.admitted
        first: list[Record] = []
        while not consumer.positions():  # joining a group is not reading
            first += consumer.poll(1, 0.01)
        start, cpu = time.perf_counter(), time.process_time()
        left = n - len(first)
        while left:
            records = consumer.poll(2000, 0.1)
            left -= len(records)
            pair.feed_leader(ReportsArrived(records, now_s))
        wall, used = time.perf_counter() - start, time.process_time() - cpu
        pair.feed_leader(ReportsArrived(first, now_s))
        assert pair.leader.admitted - before == n, "expected every report to be admitted"
        consumer.close()
    return n / wall, used / n * 1e6


def bare_rate(log: KafkaSettings, n: int) -> tuple[float, float]:
    """Read the same with librdkafka alone."""
    config: dict[str, Any] = {
        "bootstrap.servers": log.bootstrap[0], "group.id": log.named("bare"),
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = BareConsumer(config)
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


def publish_ms(log: KafkaSettings, values: Sequence[bytes]) -> tuple[float, float]:
    """One report, durable, as an agent sends it; median (wall, CPU) milliseconds."""
    with open_transport(log, Side.AGENT) as kafka:
        producer = kafka.producer()

        def send(value: bytes) -> None:
            producer.send(REPORTS, b"k" * 16, value)
            producer.flush()

        took = _medians(send, values)
        producer.close()
    return took


def bare_publish_ms(log: KafkaSettings, values: Sequence[bytes]) -> tuple[float, float]:
    """The same with kafka-python alone."""
    producer = KafkaProducer(bootstrap_servers=list(log.bootstrap))
    took = _medians(lambda value: producer.send(log.named(REPORTS), value).get(), values)
    producer.close()
    return took


def _medians(send: Callable[[bytes], object], values: Sequence[bytes]) -> tuple[float, float]:
    send(values[0])
    walls, cpus = [], []
    for value in values[:PUBLISHED]:
        start, cpu = time.perf_counter(), time.process_time()
        send(value)
        walls.append(time.perf_counter() - start)
        cpus.append(time.process_time() - cpu)
    return statistics.median(walls) * 1e3, statistics.mean(cpus) * 1e3


def demo_latency_s() -> float:
    """p90 of the time from a window's end to its release, in a demo through a broker."""
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pointillist", "demo", *DEMO, "--out", folder],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(done.stdout)["window_end_to_release_p90_s"])


def measure(bootstrap: str, hosts: int, repeats: int) -> dict[str, list[float]]:
    """Every part, `repeats` times."""
    fleet = load_fleet(hosts, CACHE / "kafka-fleet", part=500)
    found: dict[str, list[float]] = {}

    def note(name: str, came: tuple[float, float]) -> None:
        for suffix, value in zip(("", "_cpu"), came, strict=True):
            found.setdefault(name + suffix, []).append(value)

    with TemporaryDirectory(dir=CACHE) as scratch:
        pair = Pair(fleet, D, Path(scratch))
        pair.open_epochs()
        for number in range(repeats):
            window, log = T0 + number * WINDOW_S, settings(bootstrap, number)
            total = np.zeros(D, dtype=np.int64)
            chunks = sealed_chunks(fleet, pair.task_id, pair.task, window, total)
            values = [record.value for chunk in chunks for record in chunk]
            fill(log, values)
            if number % 2:  # whoever reads second finds a warmer broker
                note("bare", bare_rate(log, hosts))
            note("leader", leader_rate(log, pair, window, hosts))
            if not number % 2:
                note("bare", bare_rate(log, hosts))
            note("publish", publish_ms(log, values))
            note("bare_publish", bare_publish_ms(log, values))
    return found


def figures(found: dict[str, list[float]], release_s: float) -> list[Figure]:
    """Give the medians."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    floors = {name: middle[f"bare{name}"] for name in ("_publish", "_publish_cpu", "_cpu")}
    return [
        Figure("window_end_to_release_p90_s", release_s, "s", goal=8.0),
        Figure("leader_reports_per_second_d1000", middle["leader"], "reports/s"),
        Figure("bare_consumer_reports_per_second_d1000", middle["bare"], "reports/s"),
        Figure("leader_cpu_us_per_report_d1000", middle["leader_cpu"], "us", floor=floors["_cpu"]),
        Figure("agent_publish_ms_per_report", middle["publish"], "ms", floor=floors["_publish"]),
        Figure(
            "agent_publish_cpu_ms_per_report",
            middle["publish_cpu"],
            "ms",
            floor=floors["_publish_cpu"],
        ),
    ]


def main() -> None:
    """Measure, print, write bench/results/kafka.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    asked = parser.parse_args()
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        found = measure(broker.start(print).bootstrap, asked.hosts, asked.repeats)
    result = figures(found, demo_latency_s())
    for one in result:
        print(f"{one.name:42} {one.value:12.3f} {one.unit}")
    write_result("kafka", COMMAND, result)


if __name__ == "__main__":
    main()
