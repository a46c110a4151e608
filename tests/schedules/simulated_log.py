"""The log of a schedule, in memory: it may be away, deliver again, late, or what nobody sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Self

from tests.schedules.machine import Process
from transport.interface import (
    MAX_VALUE_BYTES,
    LogNote,
    Record,
    TopicPartition,
    TransportUnavailable,
    partition_of,
)
from wire.topics import EPOCHS, KEYS, REPORTS, ROSTERS, TASKS

PARTITIONS: Final = {REPORTS: 4, EPOCHS: 2, TASKS: 1, ROSTERS: 1, KEYS: 1}
POLL_RECORDS: Final = 200


class SimulatedLog:
    """Topics, and the offsets of each group.

    away        it serves nobody
    held        partitions of the report topic that it gives nobody for now
    backwards   partitions are given in the other order, two records at a time
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.records: dict[TopicPartition, list[Record]] = {
            (topic, part): [] for topic, parts in PARTITIONS.items() for part in range(parts)
        }
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.away = self.backwards = False
        self.held: set[int] = set()
        self.on_append: Callable[[Process | None, Record], None] = lambda _process, _record: None

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        *,
        partition: int | None = None,
        by: Process | None = None,
    ) -> None:
        part = partition_of(key, PARTITIONS[topic]) if partition is None else partition
        place = self.records[topic, part]
        record = Record(topic, part, len(place), key, value, self._now())
        self.on_append(by, record)
        place.append(record)

    def reports(self) -> list[Record]:
        return [r for (topic, _), rows in self.records.items() if topic == REPORTS for r in rows]

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        return self.committed.setdefault(group, {})

    def set_back(self, group: str) -> None:
        self.offsets(group).clear()


class LogClient:
    """One process's connection; a `Transport`."""

    report_partitions = PARTITIONS[REPORTS]

    def __init__(self, log: SimulatedLog, process: Process) -> None:
        self.log, self.process = log, process
        self.lose_flush = 0
        """The next flushes are appended and not acknowledged."""

    def require(self) -> None:
        """Raise TransportUnavailable where the log is not reached."""
        if self.log.away or self.process.cut_off:
            raise TransportUnavailable("away")

    def create_topic(self, name: str, partitions: int) -> None:
        """Every topic is there."""

    def identity(self, topic: str) -> str:
        return "simulated"

    def longest(self, topic: str) -> int:
        return MAX_VALUE_BYTES

    def partitions(self, topic: str) -> int:
        return PARTITIONS[topic]

    def producer(self) -> SimulatedProducer:
        return SimulatedProducer(self)

    def consumer(self, group: str, topics: Sequence[str]) -> SimulatedConsumer:
        self.require()
        return SimulatedConsumer(self, group, topics)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class SimulatedProducer:
    def __init__(self, client: LogClient) -> None:
        self._client = client
        self._waiting: list[tuple[str, bytes, bytes]] = []

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._waiting.append((topic, key, value))

    def flush(self) -> None:
        client = self._client
        client.require()
        waiting, self._waiting = self._waiting, []
        for topic, key, value in waiting:
            client.log.append(topic, key, value, by=client.process)
        if waiting and client.lose_flush:
            client.lose_flush -= 1
            raise TransportUnavailable("no acknowledgement came")

    def close(self) -> None:
        """Nothing is open."""


class SimulatedConsumer:
    def __init__(self, client: LogClient, group: str, topics: Sequence[str]) -> None:
        self._client, self._group, self._topics = client, group, tuple(topics)
        self._at: dict[TopicPartition, int] = {}

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        self._client.require()
        log = self._client.log
        self._join()
        found: list[Record] = []
        most = min(max_records, 2 if log.backwards else POLL_RECORDS)
        for place in sorted(self._at, reverse=log.backwards):
            if place[0] == REPORTS and place[1] in log.held:
                continue
            at = self._at[place]
            records = log.records[place][at : at + max(0, most - len(found))]
            self._at[place] = at + len(records)
            found += records
        return found

    def _join(self) -> None:
        """Take every partition; it begins at what the group committed."""
        offsets = self._client.log.offsets(self._group)
        places = [place for place in self._client.log.records if place[0] in self._topics]
        self._at = {place: self._at.get(place, offsets.get(place, 0)) for place in places}

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self._client.require()
        kept = {place: at for place, at in offsets.items() if place in self._at}
        self._client.log.offsets(self._group).update(kept)

    def rebalance(self) -> None:
        offsets = self._client.log.offsets(self._group)
        self._at = {place: offsets.get(place, 0) for place in self._at}

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._at)

    def notes(self) -> list[LogNote]:
        return []

    def lag(self) -> int | None:
        records = self._client.log.records
        return sum(len(records[place]) - at for place, at in self._at.items())

    def close(self) -> None:
        self._at = {}


def unread(log: SimulatedLog, group: str) -> Counter[str]:
    offsets = log.offsets(group)
    left: Counter[str] = Counter()
    for place, records in log.records.items():
        if place[0] in {EPOCHS, REPORTS}:
            left[place[0]] += len(records) - offsets.get(place, 0)
    return +left
