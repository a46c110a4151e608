"""One member of a consumer group, reading the embedded log."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from transport.files.sqlite_file import transaction
from transport.port import Record, TopicPartition, TransportUnavailable

from .embedded_file import failures
from .embedded_group import Membership, Slot, boot_seconds

MAX_POLL_BYTES = 64 << 20
"""A poll returns no more than this, however many records were asked for."""

_FIRST_NAP_S = 0.002
_LONGEST_NAP_S = 0.025
"""Waiting costs one `PRAGMA data_version` (a page-cache read) per nap: under 0.1 % of a core."""

_LOOK_EVERY_S = 0.5
"""How soon the partitions of a killed member are taken over."""


class EmbeddedConsumer:
    """Reads its share of the group's partitions; see `transport.port.Consumer`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        topics: Mapping[str, int],
        membership: Membership,
    ) -> None:
        self._connection = connection
        self._path = path
        self._names = {topic_id: name for name, topic_id in topics.items()}
        self._ids = dict(topics)
        self._membership = membership
        self._positions: dict[Slot, int] = {}
        self._generation = -1
        self._renew_s = 0.0
        self._look_s = 0.0
        self._turn = 0
        self._read_version = -1
        self._more = False
        self._closed = False
        with failures(path):
            self._refresh()

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        deadline = time.monotonic() + timeout_s
        nap_s = _FIRST_NAP_S
        with failures(self._path):
            while True:
                version = self._data_version()
                # Where nobody has written since a look that found nothing, there is nothing.
                known = version == self._read_version
                moved = self._refresh(known)
                records = [] if known and not moved else self._read(max_records)
                self._read_version = -1 if self._more else version
                if records or time.monotonic() >= deadline:
                    return records
                while version == self._data_version() and time.monotonic() < deadline:
                    time.sleep(min(nap_s, max(0.0, deadline - time.monotonic())))
                    nap_s = min(2 * nap_s, _LONGEST_NAP_S)
                    if boot_seconds() >= self._look_s:
                        break

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        group, member = self._membership.group, self._membership.member
        rows = [
            (group, self._ids[topic], partition, next_offset, member)
            for (topic, partition), next_offset in offsets.items()
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

    def seek_to_committed(self) -> None:
        with failures(self._path):
            self._positions = {slot: self._committed(slot) for slot in self._positions}
            self._read_version = -1

    def positions(self) -> dict[TopicPartition, int]:
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
            return sum(self._end(slot) - at for slot, at in self._positions.items())

    def _end(self, slot: Slot) -> int:
        row = self._connection.execute(
            'SELECT max("offset") FROM records WHERE topic_id = ? AND partition = ?', slot
        ).fetchone()
        # Retention may have removed what was read.
        return max(self._positions[slot], 0 if row[0] is None else row[0] + 1)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            # Where the log is away, the lease ends by itself.
            with (
                suppress(TransportUnavailable),
                failures(self._path),
                transaction(self._connection),
            ):
                self._membership.leave(self._connection)
        finally:
            self._connection.close()

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _refresh(self, known: bool = False) -> bool:
        """Renew the lease when it is due, and follow a new division of the partitions.

        known       nobody else has written since the last call
        Returns     whether the partitions may be others
        """
        membership, connection = self._membership, self._connection
        removed = not known and membership.was_removed(connection)
        if removed:
            self._positions = {}  # another member may have committed: start from there
        renewed = removed or self._should_renew(known)
        if renewed:
            with transaction(connection):
                membership.renew(connection)
            self._renew_s = boot_seconds() + membership.renewal_s
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
        now = boot_seconds()
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

    def _read(self, max_records: int) -> list[Record]:
        """Read partition after partition, starting with another one each time."""
        slots = sorted(self._positions)
        before = dict(self._positions)
        records: list[Record] = []
        room_bytes = MAX_POLL_BYTES
        self._turn += 1
        for step in range(len(slots)):
            slot = slots[(self._turn + step) % len(slots)]
            if len(records) >= max_records or room_bytes <= 0:
                break
            room_bytes = self._read_slot(slot, max_records - len(records), room_bytes, records)
        self._more = self._positions != before
        return records

    def _read_slot(
        self, slot: Slot, max_records: int, room_bytes: int, records: list[Record]
    ) -> int:
        cursor = self._connection.execute(
            'SELECT "offset", appended_s, key, value FROM records WHERE topic_id = ?'
            ' AND partition = ? AND "offset" >= ? ORDER BY "offset" LIMIT ?',
            (*slot, self._positions[slot], max_records),
        )
        topic = self._names[slot[0]]
        for offset, appended_s, key, value in cursor:
            if not isinstance(offset, int):
                raise sqlite3.DatabaseError("an offset that is no number")
            if not (isinstance(key, bytes) and isinstance(value, bytes)):
                self._positions[slot] = offset + 1
                continue  # a table that another user made: what is no bytes is no record
            records.append(Record(topic, slot[1], offset, key, value, appended_s))
            self._positions[slot] = offset + 1
            room_bytes -= len(key) + len(value)
            if room_bytes <= 0:
                break
        cursor.close()
        return room_bytes
