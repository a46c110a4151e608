"""The transport as every other layer sees it: topics, keys, partitions, offsets, groups.

The contract, which `tests/transport/conformance.py` holds for each implementation:

- A record goes to the partition of its key, so records of one key keep their order.
- Offsets of a partition start at 0 and rise by one with each record. Where strangers may write to
  it a log may leave some out, which are no records: readers go by order alone.
- `send` may buffer; after `flush` returns, everything sent before is durable. A crash of the
  producer leaves what it flushed to one partition whole or absent (of up to `BATCH_BYTES`).
- Delivery is at least once: what a group has not committed is delivered again.
- A topic keeps the number of partitions it was made with, whatever others ask for later. Where an
  administrator adds some, readers take them up; a producer goes on with those that it knew.
- What a group committed counts for the log of which it was: one that was made anew, or that has
  become shorter, is read from its beginning, also by members that run, which note it once.
- A record that cannot be read is passed over, and noted once.
- The members of a group divide the partitions of their topics among themselves; when one leaves or
  dies, the others take over from the group's committed offsets.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

from transport.process.supervision import Closing
from wire.topics import REPORTS, TOPICS

TopicPartition = tuple[str, int]  # a topic's name and a partition's number, from 0

MAX_KEY_BYTES = 1024
RETENTION_S = 14 * 86_400
"""Age at which sealed reports go, unless a configuration says another: twice what a task keeps."""
MAX_VALUE_BYTES = 8 << 20
"""Longest value: a report of d = 2^20 coordinates is 4 MiB, one under the scheme `local` 8 MiB."""


class TransportUnavailable(Exception):
    """The transport cannot serve now (disk, lock, broker); the caller's shell retries."""


class TransportRefused(TransportUnavailable):
    """The transport answers, but not to us; says which of credentials, certificates, rights."""


class RecordTooLarge(ValueError):
    """A key or value above the transport's limit; sending it again cannot help.

    refused     of what was flushed; nothing of it waits any more, and the rest is durable
    """

    def __init__(self, why: str, refused: Sequence[Outgoing] = ()) -> None:
        super().__init__(why)
        self.refused = tuple(refused)


class UnknownTopic(TransportUnavailable):
    """A topic that nobody has created, or that somebody deleted; it may come."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it was appended; `appended_s` is the log's own clock, seconds since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    appended_s: float


class Noted(Enum):
    """What a reader notices of a log; the value is the name under which it is counted."""

    ANEW = "log_anew"
    SHORTER = "log_shorter"
    UNREADABLE = "log_unreadable"


@dataclass(frozen=True, slots=True)
class LogNote:
    """What was noticed, of which topic; `detail` is for people."""

    noted: Noted
    topic: str
    detail: str


def made_anew(topic: str, before: str, now: str) -> LogNote:
    """Note another log of the same name; `before` and `now` are identities."""
    ids = f"id {before or 'not known'}, now {now or 'not known'}"
    return LogNote(Noted.ANEW, topic, f"{topic} was made anew ({ids}): read from its start")


def became_shorter(place: TopicPartition, read_to: int, end: int) -> LogNote:
    topic, partition = place
    detail = f"{topic}/{partition} ends at {end}, and was read to {read_to}: read again"
    return LogNote(Noted.SHORTER, topic, detail)


def passed_over(place: TopicPartition, offset: int, why: str) -> LogNote:
    topic, partition = place
    detail = f"{topic}/{partition}, offset {offset}: passed over: {why}"
    return LogNote(Noted.UNREADABLE, topic, detail)


class Producer(Protocol):
    """Sends records; not shared between threads."""

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Queue one record. Raises RecordTooLarge, TransportUnavailable."""

    def flush(self) -> None:
        """Make all sent durable, in order; else it stays queued.

        Raises      TransportUnavailable; RecordTooLarge for what the topic takes in no part
        """

    def close(self) -> None:
        """Flush, then let go; a second call does nothing."""


class Consumer(Protocol):
    """One member of a consumer group; not shared between threads."""

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Wait up to `timeout_s` for a record; give up to so many. Raises TransportUnavailable."""

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """Record the next offset to read of each partition, durably, for the whole group.

        Partitions that this member no longer holds are left alone.
        Raises      TransportUnavailable
        """

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset to read, for every partition that this member holds now."""

    def lag(self) -> int | None:
        """Records of held partitions that `poll` has not given; None: it holds none yet."""

    def notes(self) -> list[LogNote]:
        """What was noticed since the last call, each once.

        The poll that notices another log gives none of its records: those come with the next.
        """

    def close(self) -> None:
        """Leave the group at once, in bounded time: else the membership runs out by itself."""


class Transport(Protocol):
    """A connection to one log."""

    @property
    def report_partitions(self) -> int:
        """How many partitions a topic of reports gets that is made on such a log."""

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic where it is missing. Raises ValueError, TransportUnavailable."""

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises UnknownTopic, TransportUnavailable."""

    def identity(self, topic: str) -> str:
        """Which log of that name it is: one made anew is another; empty where nobody knows.

        Raises      TransportUnavailable
        """

    def longest(self, topic: str) -> int:
        """The longest value that it takes, as far as it tells. Raises TransportUnavailable."""

    def producer(self) -> Producer: ...

    def consumer(self, group: str, topics: Sequence[str]) -> Consumer:
        """Join `group`, at its commit or the oldest. Raises UnknownTopic, TransportUnavailable."""

    def close(self) -> None:
        """Let go of everything that this object opened."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


def create_topics(transport: Transport, *, reports: int | None = None) -> None:
    """Create missing topics; `reports`: partitions of reports. Raises TransportUnavailable."""
    for topic in TOPICS:
        named = reports or transport.report_partitions if topic.name == REPORTS else None
        transport.create_topic(topic.name, named or topic.partitions)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 modulo the number of partitions."""
    return zlib.crc32(key) % partitions


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record that the log has not acknowledged yet."""

    topic: str
    partition: int
    key: bytes
    value: bytes


def _size(record: Outgoing) -> int:
    return len(record.key) + len(record.value)


BATCH_RECORDS = 1000


class BatchingProducer(ABC):
    """A `Producer` that keeps what is not acknowledged, in order, and never more than a batch.

    partitions  name of a topic -> number of its partitions; raises UnknownTopic
    limit       name of a topic -> its longest value
    """

    batch_bytes: int  # flushed by itself beyond it

    def __init__(self, partitions: Callable[[str], int], limit: Callable[[str], int]) -> None:
        self._partitions, self._limit = partitions, limit
        self._pending: list[Outgoing] = []
        self._pending_bytes = 0
        self._refused: list[Outgoing] = []

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        limit = self._limit(topic)
        if len(key) > MAX_KEY_BYTES:
            raise RecordTooLarge(f"key: expected at most {MAX_KEY_BYTES} bytes, got {len(key)}")
        if len(value) > limit:
            raise RecordTooLarge(f"value: expected at most {limit} bytes, got {len(value)}")
        size = len(key) + len(value)
        longer = self._pending_bytes + size > self.batch_bytes
        if self._pending and (longer or len(self._pending) >= BATCH_RECORDS):
            self._send_pending()  # where it fails, this one is not taken: the buffer stays bounded
        partition = partition_of(key, self._partitions(topic))  # of the log that there is now
        self._pending.append(Outgoing(topic, partition, bytes(key), bytes(value)))
        self._pending_bytes += size

    def flush(self) -> None:
        if self._pending:
            self._send_pending()
        if self._refused:
            refused, self._refused = self._refused, []
            longest = max(refused, key=_size)
            raise RecordTooLarge(
                f"{longest.topic}: expected records of at most what the topic takes, "
                f"got {len(refused)} of up to {_size(longest)} bytes",
                refused,
            )

    def _send_pending(self) -> None:
        self._pending, failure = self._send_in_parts(self._pending)
        self._pending_bytes = sum(map(_size, self._pending))
        if failure is not None:
            raise failure

    def _send_in_parts(
        self, records: Sequence[Outgoing]
    ) -> tuple[list[Outgoing], Exception | None]:
        """Send records, in halves where they are too long together; give what is left, and why."""
        places, failure = self._deliver(records)
        left = [records[place] for place in places]
        if not isinstance(failure, RecordTooLarge):
            return left, failure
        if len(left) == 1:
            self._refused += left
            return [], None
        self.batch_bytes = min(self.batch_bytes, sum(map(_size, left)) // 2)  # so are later ones
        half = len(left) // 2
        first, failure = self._send_in_parts(left[:half])
        if failure is not None:
            return first + left[half:], failure
        return self._send_in_parts(left[half:])

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._drop()

    @abstractmethod
    def _deliver(self, records: Sequence[Outgoing]) -> tuple[list[int], Exception | None]:
        """Send records and wait; give the places of those not acknowledged, and why."""

    @abstractmethod
    def _drop(self) -> None:
        """Let go of the client, if there is one, without waiting for what it still holds."""


class ForwardingTransport(Closing):
    """Passes every call to `inner`."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    @property
    def report_partitions(self) -> int:
        return self.inner.report_partitions

    def create_topic(self, name: str, partitions: int) -> None:
        self.inner.create_topic(name, partitions)

    def partitions(self, topic: str) -> int:
        return self.inner.partitions(topic)

    def identity(self, topic: str) -> str:
        return self.inner.identity(topic)

    def longest(self, topic: str) -> int:
        return self.inner.longest(topic)

    def producer(self) -> Producer:
        return self.inner.producer()

    def consumer(self, group: str, topics: Sequence[str]) -> Consumer:
        return self.inner.consumer(group, topics)

    def close(self) -> None:
        self.inner.close()


class OpenLog(Transport, Protocol):
    """A log that a configuration names: it tells its own time besides."""

    def newest_s(self, topics: Sequence[str]) -> float | None:
        """When the newest record of these topics was appended, by the log's own clock.

        Nothing is read and no group joined. None where there is none; topics may be missing.
        Raises      TransportUnavailable
        """
