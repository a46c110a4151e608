"""The embedded log: a SQLite file that several processes of one machine share.

The contract is `transport.port`'s; for whom it is and what it is not, see docs/transport.md.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from transport.files.sqlite_file import transaction
from transport.port import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    RecordTooLarge,
    UnknownTopic,
    partition_of,
)
from transport.process.closing import Closing

from .embedded_consumer import EmbeddedConsumer
from .embedded_file import connect, failures, prepare_folder
from .embedded_group import Membership

MAX_PARTITIONS = 1024
DEFAULT_LEASE_S = 30.0
"""Longer than a Leader's longest step between two polls; a killed process is seen sooner."""

_BATCH_RECORDS = 1000
_BATCH_BYTES = 4 << 20
_PURGE_EVERY_S = 60.0


class EmbeddedLog(Closing):
    """One program's access to the log in `folder`; every producer and consumer gets a connection.

    group           the users' common group where several users share the log, else None
    lease_s         how long a member of a consumer group may go without polling
    retention_s     records older than this are purged, None keeps them
    keep            topics whose records are never purged
    """

    report_partitions = 4
    """A partition costs every reader a lease."""

    def __init__(
        self,
        folder: Path,
        *,
        group: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        retention_s: float | None = None,
        keep: Collection[str] = (),
        max_value_bytes: int = MAX_VALUE_BYTES,
        busy_timeout_s: float = 10.0,
    ) -> None:
        self._lease_s = lease_s
        self._retention_s = retention_s
        self._keep = frozenset(keep)
        self._max_value_bytes = max_value_bytes
        self._busy_timeout_s = busy_timeout_s
        self._topics: dict[str, tuple[int, int]] = {}  # a topic never changes or goes away
        with failures(folder):
            self.path = prepare_folder(folder, group)
        self._connection = self._connect()

    def create_topic(self, name: str, partitions: int) -> None:
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ValueError(
                f"partitions of {name}: expected 1..{MAX_PARTITIONS}, got {partitions}"
            )
        with failures(self.path), transaction(self._connection):
            self._connection.execute(
                "INSERT OR IGNORE INTO topics (name, partitions) VALUES (?, ?)", (name, partitions)
            )

    def partitions(self, topic: str) -> int:
        with failures(self.path):
            return self._topic(topic)[1]

    def producer(self) -> EmbeddedProducer:
        return EmbeddedProducer(self, self._connect())

    def consumer(self, group: str, topics: Sequence[str]) -> EmbeddedConsumer:
        with failures(self.path):
            ids = {name: self._topic(name)[0] for name in topics}
        membership = Membership(group, ids.values(), self._lease_s)
        return EmbeddedConsumer(self._connect(), self.path, ids, membership)

    def newest_s(self, topics: Sequence[str]) -> float | None:
        newest = [
            row[0]
            for name in topics
            for part in range(self._partitions_or_none(name))
            for row in self._connection.execute(
                "SELECT appended_s FROM records WHERE topic_id = ? AND partition = ? "
                'ORDER BY "offset" DESC LIMIT 1',
                (self._topic(name)[0], part),
            )
        ]
        return max(newest, default=None)

    def _partitions_or_none(self, name: str) -> int:
        try:
            return self.partitions(name)
        except UnknownTopic:
            return 0

    def purge(self, older_than_s: float) -> int:
        """Delete the records appended before `older_than_s` (seconds since 1970).

        Offsets go on where they were; a group that had not read them goes on at the oldest record
        left. Their bytes are overwritten, and gone from the write-ahead log as soon as no reader
        stands in it. Returns the number of records deleted.
        """
        with failures(self.path), transaction(self._connection):
            names = self._connection.execute("SELECT topic_id, name FROM topics").fetchall()
            purged = [topic_id for topic_id, name in names if name not in self._keep]
            deleted = sum(
                self._connection.execute(
                    "DELETE FROM records WHERE topic_id = ? AND appended_s < ?",
                    (topic_id, older_than_s),
                ).rowcount
                for topic_id in purged
            )
        with failures(self.path):
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()
            if deleted:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return deleted

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> sqlite3.Connection:
        with failures(self.path):
            return connect(self.path, self._busy_timeout_s, self._max_value_bytes)

    def _topic(self, name: str) -> tuple[int, int]:
        """Number and partitions of a topic."""
        if name not in self._topics:
            self._topics[name] = self._look_up(name)
        return self._topics[name]

    def _look_up(self, name: str) -> tuple[int, int]:
        row = self._connection.execute(
            "SELECT topic_id, partitions FROM topics WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            raise UnknownTopic(f"topic {name} does not exist; create_topic comes first")
        return row[0], row[1]

    def check_size(self, key: bytes, value: bytes) -> None:
        """Refuse what no reader could load.

        Raises      RecordTooLarge
        """
        if len(key) > MAX_KEY_BYTES:
            raise RecordTooLarge(f"key: expected at most {MAX_KEY_BYTES} bytes, got {len(key)}")
        if len(value) > self._max_value_bytes:
            raise RecordTooLarge(
                f"value: expected at most {self._max_value_bytes} bytes, got {len(value)}"
            )

    def slot(self, topic: str, key: bytes) -> tuple[int, int]:
        """Number of the topic and the partition of the key."""
        with failures(self.path):
            topic_id, partitions = self._topic(topic)
        return topic_id, partition_of(key, partitions)

    def purge_if_due(self, last_s: float) -> float:
        """Apply the retention, at most once a minute; returns when it last ran."""
        now = time.time()
        if self._retention_s is None or now - last_s < _PURGE_EVERY_S:
            return last_s
        self.purge(now - self._retention_s)
        return now


class EmbeddedProducer:
    """Buffers records and appends each flush in one transaction; see `transport.port.Producer`."""

    def __init__(self, log: EmbeddedLog, connection: sqlite3.Connection) -> None:
        self._log = log
        self._connection = connection
        self._pending: list[tuple[tuple[int, int], bytes, bytes]] = []
        self._pending_bytes = 0
        self._purged_s = 0.0

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._log.check_size(key, value)
        slot = self._log.slot(topic, key)
        size = len(key) + len(value)
        full = len(self._pending) >= _BATCH_RECORDS or self._pending_bytes + size > _BATCH_BYTES
        if self._pending and full:
            self.flush()  # where this fails, the record was not taken and the buffer stays bounded
        self._pending.append((slot, bytes(key), bytes(value)))
        self._pending_bytes += size

    def flush(self) -> None:
        if not self._pending:
            return
        with failures(self._log.path):
            with transaction(self._connection):
                self._append_pending()
            self._pending.clear()
            self._pending_bytes = 0
            self._purged_s = self._log.purge_if_due(self._purged_s)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._connection.close()

    def _append_pending(self) -> None:
        by_slot: dict[tuple[int, int], list[tuple[bytes, bytes]]] = defaultdict(list)
        for slot, key, value in self._pending:
            by_slot[slot].append((key, value))
        appended_s = time.time()
        for slot, records in by_slot.items():
            first = self._reserve(slot, len(records))
            self._connection.executemany(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*slot, first + i, appended_s, key, value)
                    for i, (key, value) in enumerate(records)
                ],
            )

    def _reserve(self, slot: tuple[int, int], count: int) -> int:
        """The first of `count` new offsets."""
        row = self._connection.execute(
            "INSERT INTO ends VALUES (?1, ?2, ?3) ON CONFLICT (topic_id, partition)"
            " DO UPDATE SET next_offset = next_offset + ?3 RETURNING next_offset",
            (*slot, count),
        ).fetchone()
        return int(row[0]) - count
