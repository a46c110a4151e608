"""The embedded log: a SQLite file that several processes of one machine share (docs/kafka.md)."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from transport import interface
from transport.files.sqlite_file import transaction
from transport.process.supervision import Closing, boot_s

from .embedded_group import (
    Membership,
    Place,
    Slot,
    connect,
    failures,
    identity_of,
    place_of,
    prepare_folder,
)

MAX_POLL_BYTES = 64 << 20  # a poll returns no more than this, however many records were asked for

_FIRST_NAP_S = 0.002
_LONGEST_NAP_S = 0.025
"""Waiting costs one `PRAGMA data_version` (a page-cache read) per nap: under 0.1 % of a core."""

_LOOK_EVERY_S = 0.5  # how soon the partitions of a killed member are taken over


class EmbeddedConsumer:
    """Reads its share of the group's partitions; see `transport.interface.Consumer`."""

    def __init__(self, log: EmbeddedLog, group: str, topics: Sequence[str]) -> None:
        self._log, self._path = log, log.path
        self._group, self._topics = group, topics
        self._notes: list[interface.LogNote] = []
        self._closed = False
        self._member = os.urandom(12).hex()
        with failures(self._path):
            self._place, self._connection = log.open_file()
            self._identity = identity_of(self._connection)
            self._begin()

    def _begin(self) -> None:
        log = self._log
        self._ids = {name: log.topic(name)[0] for name in self._topics}
        self._names = {topic_id: name for name, topic_id in self._ids.items()}
        self._membership = Membership(self._group, self._ids.values(), log.lease_s, self._member)
        self._positions: dict[Slot, int] = {}
        self._generation = -1
        self._renew_s = 0.0
        self._look_s = 0.0
        self._turn = 0
        self._read_version = -1
        self._more = False
        self._refresh()

    def _follow(self) -> bool:
        """Go over to the file that lies there now, where it is another; whether it is."""
        if place_of(self._path) == self._place:
            return False
        old, before = self._connection, self._identity
        self._place, self._connection = self._log.open_file()
        old.close()
        self._identity = identity_of(self._connection)
        if self._identity != before:
            self._notes += [
                interface.made_anew(topic, before, self._identity) for topic in self._topics
            ]
        self._begin()
        return True

    def poll(self, max_records: int, timeout_s: float) -> list[interface.Record]:
        deadline = time.monotonic() + timeout_s
        nap_s = _FIRST_NAP_S
        with failures(self._path):
            if self._follow():
                return []
            while True:
                version = self._data_version()
                # Where nobody has written since a look that found nothing, there is nothing.
                known = version == self._read_version
                moved = self._refresh(known)
                if not known and self._became_shorter():
                    return []
                records = [] if known and not moved else self._read(max_records)
                self._read_version = -1 if self._more else version
                if records or time.monotonic() >= deadline:
                    return records
                while version == self._data_version() and time.monotonic() < deadline:
                    time.sleep(min(nap_s, max(0.0, deadline - time.monotonic())))
                    nap_s = min(2 * nap_s, _LONGEST_NAP_S)
                    if boot_s() >= self._look_s:
                        break

    def commit(self, offsets: dict[interface.TopicPartition, int]) -> None:
        group, member = self._membership.group, self._membership.member
        rows = [
            (group, self._ids[topic], partition, next_offset, member)
            for (topic, partition), next_offset in offsets.items()
            # Else it was of a log before this one.
            if next_offset <= self._positions.get((self._ids[topic], partition), -1)
        ]
        with failures(self._path), transaction(self._connection):
            # Written only where the partition is still ours, in the same transaction: a member that
            # was replaced while it worked cannot move its successor.
            self._connection.executemany(
                "INSERT OR REPLACE INTO commits SELECT ?1, ?2, ?3, ?4 WHERE EXISTS ("
                "SELECT 1 FROM assignments WHERE group_name = ?1 AND topic_id = ?2"
                " AND partition = ?3 AND member = ?5)",
                rows,
            )

    def positions(self) -> dict[interface.TopicPartition, int]:
        with failures(self._path):
            self._refresh()
        return {
            (self._names[topic_id], partition): position
            for (topic_id, partition), position in sorted(self._positions.items())
        }

    def lag(self) -> int | None:
        with failures(self._path):
            if not self._positions:
                return None
            return sum(self._left(slot, at) for slot, at in self._positions.items())

    def _left(self, slot: Slot, at: int) -> int:
        row = self._connection.execute(
            'SELECT max("offset") FROM records WHERE topic_id = ? AND partition = ?', slot
        ).fetchone()
        return 0 if row[0] is None else max(row[0] + 1 - at, 0)  # what was read may be gone

    def notes(self) -> list[interface.LogNote]:
        taken, self._notes = self._notes, []
        return taken

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            # Where the log is away, the lease ends by itself.
            with (
                suppress(interface.TransportUnavailable),
                failures(self._path),
                transaction(self._connection),
            ):
                self._membership.leave(self._connection)
        finally:
            self._connection.close()

    def _became_shorter(self) -> bool:
        """Whether the log ends before what was read of it: then that is read again."""
        rows = self._connection.execute("SELECT topic_id, partition, next_offset FROM ends")
        ends = {(topic_id, partition): end for topic_id, partition, end in rows}
        found = [slot for slot, at in self._positions.items() if at > ends.get(slot, 0)]
        for slot in found:
            place, at = (self._names[slot[0]], slot[1]), self._positions[slot]
            self._notes.append(interface.became_shorter(place, at, ends.get(slot, 0)))
            self._positions[slot] = 0
        if found:
            self._read_version = -1
        return bool(found)

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _refresh(self, known: bool = False) -> bool:
        """Renew the lease when due, follow a new division; whether partitions may be others.

        known       nobody else has written since the last call
        """
        membership, connection = self._membership, self._connection
        removed = not known and membership.was_removed(connection)
        if removed:
            self._positions = {}  # another member may have committed: start from there
        renewed = removed or self._should_renew(known)
        if renewed:
            with transaction(connection):
                membership.renew(connection)
            self._renew_s = boot_s() + membership.renewal_s
        if known and not renewed:
            return False
        generation = membership.generation(connection)
        if generation != self._generation:
            held = membership.held(connection)
            kept = {slot: at for slot, at in self._positions.items() if slot in held}
            self._positions = {slot: self._committed(slot) for slot in held} | kept
            self._generation = generation
        return True

    def _should_renew(self, known: bool) -> bool:
        now = boot_s()
        if now >= self._renew_s:
            return True
        # A member that was alone still is, if nobody has written since.
        self._membership.alone &= known
        if now < self._look_s or self._membership.alone:
            return False
        self._look_s = now + _LOOK_EVERY_S
        return self._membership.somebody_died(self._connection)

    def _committed(self, slot: Slot) -> int:
        row = self._connection.execute(
            "SELECT next_offset FROM commits WHERE group_name = ? AND topic_id = ?"
            " AND partition = ?",
            (self._membership.group, *slot),
        ).fetchone()
        return row[0] if row else 0

    def _read(self, max_records: int) -> list[interface.Record]:
        """Read partition after partition, starting with another one each time."""
        slots = sorted(self._positions)
        before = dict(self._positions)
        records: list[interface.Record] = []
        room_bytes = MAX_POLL_BYTES
        self._turn += 1
        for step in range(len(slots)):
            slot = slots[(self._turn + step) % len(slots)]
            if len(records) >= max_records or room_bytes <= 0:
                break
            with closing(
                self._connection.execute(
                    'SELECT "offset", appended_s, key, value FROM records WHERE topic_id = ?'
                    ' AND partition = ? AND "offset" >= ? ORDER BY "offset" LIMIT ?',
                    (*slot, self._positions[slot], max_records - len(records)),
                )
            ) as cursor:
                for offset, appended_s, key, value in cursor:
                    if not isinstance(offset, int):
                        raise sqlite3.DatabaseError("an offset that is no number")
                    self._positions[slot] = offset + 1
                    if not (isinstance(key, bytes) and isinstance(value, bytes)):
                        continue  # a table that another user made: what is no bytes is no record
                    place = (self._names[slot[0]], slot[1], offset)
                    records.append(interface.Record(*place, key, value, appended_s))
                    room_bytes -= len(key) + len(value)
                    if room_bytes <= 0:
                        break
        self._more = self._positions != before
        return records


MAX_PARTITIONS = 1024
DEFAULT_LEASE_S = 30.0
"""Longer than a Leader's longest step between two polls; a killed process is seen sooner."""

_PURGE_EVERY_S = 60.0


class EmbeddedLog(Closing):
    """One program's access to the log in `folder`; every producer and consumer gets a connection.

    group           the users' common group where several users share the log, else None
    lease_s         how long a member of a consumer group may go without polling
    retention_s     records older than this are purged, None keeps them
    keep            topics whose records are never purged
    """

    report_partitions = 4  # a partition costs every reader a lease

    def __init__(
        self,
        folder: Path,
        *,
        group: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        retention_s: float | None = None,
        keep: Collection[str] = (),
        max_value_bytes: int = interface.MAX_VALUE_BYTES,
        busy_timeout_s: float = 10.0,
    ) -> None:
        self.lease_s = lease_s
        self._group = group
        self._retention_s = retention_s
        self._keep = frozenset(keep)
        self.max_value_bytes = max_value_bytes
        self._busy_timeout_s = busy_timeout_s
        self._topics: dict[str, tuple[int, int]] = {}  # of this file they never change or go away
        with failures(folder):
            self.path = prepare_folder(folder, group)
            self._place = place_of(self.path)
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
        with failures(self.path):
            self.topic(name)  # a file that is made anew gets it, too

    def partitions(self, topic: str) -> int:
        with failures(self.path):
            return self.topic(topic)[1]

    def identity(self, topic: str) -> str:  # noqa: ARG002  (its topics were made with the file)
        _place, connection = self.open_file()
        with closing(connection), failures(self.path):
            return identity_of(connection)

    def longest(self, topic: str) -> int:  # noqa: ARG002  (one limit for all)
        return self.max_value_bytes

    def producer(self) -> EmbeddedProducer:
        return EmbeddedProducer(self)

    def consumer(self, group: str, topics: Sequence[str]) -> EmbeddedConsumer:
        with failures(self.path):
            for name in topics:
                self.topic(name)
        return EmbeddedConsumer(self, group, topics)

    def newest_s(self, topics: Sequence[str]) -> float | None:
        newest: list[float] = []
        for name in topics:
            with suppress(interface.UnknownTopic), failures(self.path):
                number, partitions = self.topic(name)
                for partition in range(partitions):
                    newest += (
                        self._connection.execute(
                            "SELECT appended_s FROM records WHERE topic_id = ? AND partition = ? "
                            'ORDER BY "offset" DESC LIMIT 1',
                            (number, partition),
                        ).fetchone()
                        or ()
                    )
        return max(newest, default=None)

    def purge(self, older_than_s: float) -> int:
        """Delete the records appended before `older_than_s`, unix seconds; give how many.

        Offsets go on where they were. Bytes are overwritten, and gone from the write-ahead log as
        soon as no reader stands in it.
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
            return connect(self.path, self._busy_timeout_s, self.max_value_bytes)

    def open_file(self) -> tuple[Place | None, sqlite3.Connection]:
        """Connect to the file that lies there now, and say which it is.

        One that was made anew, or that this makes because there is none, gets the topics of the one
        before: those who write to it may not wait for who made them.
        """
        with failures(self.path):
            place = place_of(self.path)
            if place != self._place or place is None:
                prepare_folder(self.path.parent, self._group)
                self._place = place = place_of(self.path)
                self._connection.close()
                self._connection = self._connect()
                before, self._topics = self._topics, {}
                for name, (_, partitions) in before.items():
                    self.create_topic(name, partitions)
        return place, self._connect()

    def topic(self, name: str) -> tuple[int, int]:
        """Number and partitions of a topic."""
        if name not in self._topics:
            row = self._connection.execute(
                "SELECT topic_id, partitions FROM topics WHERE name = ?", (name,)
            ).fetchone()
            if row is None:
                raise interface.UnknownTopic(
                    f"topic {name} does not exist: the Leader makes it when it starts"
                )
            self._topics[name] = row[0], row[1]
        return self._topics[name]

    def purge_if_due(self, last_s: float) -> float:
        """Apply the retention, at most once a minute; returns when it last ran."""
        now = time.time()
        if self._retention_s is None or now - last_s < _PURGE_EVERY_S:
            return last_s
        self.purge(now - self._retention_s)
        return now


class EmbeddedProducer(interface.BatchingProducer):
    """Appends each flush in one transaction."""

    batch_bytes = 4 << 20

    def __init__(self, log: EmbeddedLog) -> None:
        super().__init__(log.partitions, lambda _topic: log.max_value_bytes)
        self._log = log
        self._place, self._connection = log.open_file()
        self._purged_s = 0.0

    def flush(self) -> None:
        if self._pending:
            super().flush()
            with failures(self._log.path):
                self._purged_s = self._log.purge_if_due(self._purged_s)

    def _send_pending(self) -> None:
        self._follow()
        super()._send_pending()

    def _follow(self) -> None:
        """Write to the file that lies there now: what another takes is in no log."""
        with failures(self._log.path):
            if place_of(self._log.path) != self._place:
                old = self._connection
                self._place, self._connection = self._log.open_file()
                old.close()
                self._pending = [
                    replace(
                        one,
                        partition=interface.partition_of(one.key, self._log.partitions(one.topic)),
                    )
                    for one in self._pending
                ]

    def _deliver(self, records: Sequence[interface.Outgoing]) -> tuple[list[int], Exception | None]:
        by_slot: dict[Slot, list[interface.Outgoing]] = defaultdict(list)
        appended_s = time.time()
        with failures(self._log.path), transaction(self._connection):
            for record in records:
                by_slot[self._log.topic(record.topic)[0], record.partition].append(record)
            for slot, appended in by_slot.items():
                (end,) = self._connection.execute(
                    "INSERT INTO ends VALUES (?1, ?2, ?3) ON CONFLICT (topic_id, partition)"
                    " DO UPDATE SET next_offset = next_offset + ?3 RETURNING next_offset",
                    (*slot, len(appended)),
                ).fetchone()
                self._connection.executemany(
                    "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (*slot, end - len(appended) + i, appended_s, record.key, record.value)
                        for i, record in enumerate(appended)
                    ],
                )
        return [], None

    def _drop(self) -> None:
        self._connection.close()
