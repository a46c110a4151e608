"""The bounded spool of sealed records, in the ledger's file so that one transaction covers both."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from .ledger_errors import SpoolFull
from .ledger_records import SealedRecord, SpooledRecord, SpoolLimits


class Spool:
    """Sealed records that have not been acknowledged by the transport, oldest first."""

    def __init__(self, db: sqlite3.Connection, limits: SpoolLimits) -> None:
        self._db = db
        self._limits = limits
        self.records = 0
        self.size_bytes = 0
        self.recount()

    def recount(self) -> None:
        """Read the true fill from the file."""
        row = self._db.execute("SELECT count(*), coalesce(sum(length(value)), 0) FROM spool")
        self.records, self.size_bytes = row.fetchone()

    def require_room(self, records: Sequence[SealedRecord]) -> None:
        """Raise SpoolFull when the records would pass a bound."""
        count = self.records + len(records)
        size = self.size_bytes + sum(len(record.value) for record in records)
        if count > self._limits.max_records or size > self._limits.max_bytes:
            raise SpoolFull(count, size, self._limits.max_records, self._limits.max_bytes)

    def insert(self, records: Sequence[SealedRecord]) -> tuple[int, ...]:
        """Add records inside the caller's transaction and give their ids, ascending."""
        row = self._db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence")
        first = row.fetchone()[0] + 1
        ids = tuple(range(first, first + len(records)))
        self._db.executemany(
            "INSERT INTO spool VALUES (?, ?, ?, ?, ?, ?)",
            (
                (spool_id, r.topic, r.key, r.value, r.publish_at_ms, r.expires_s)
                for spool_id, r in zip(ids, records, strict=True)
            ),
        )
        return ids

    def oldest(self, limit: int, after_id: int = 0) -> list[SpooledRecord]:
        """Give up to `limit` records above an id, in the order in which they were sealed."""
        rows = self._db.execute(
            "SELECT id, topic, key, value, publish_at_ms, expires_s FROM spool WHERE id > ? "
            "ORDER BY id LIMIT ?",
            (after_id, limit),
        )
        return [SpooledRecord(row[0], SealedRecord(*row[1:])) for row in rows]

    def delete(self, ids: Sequence[int]) -> None:
        """Remove acknowledged records inside the caller's transaction."""
        self._db.executemany("DELETE FROM spool WHERE id = ?", ((i,) for i in ids))

    def delete_expired(self, now_s: int) -> int:
        """Remove records that nobody accepts any more; give how many."""
        return self._db.execute("DELETE FROM spool WHERE expires_s <= ?", (now_s,)).rowcount
