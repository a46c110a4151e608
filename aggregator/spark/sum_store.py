"""The sink: partial sums with the hosts in them, each batch in one transaction, once.

A set of hosts that is no union of partial sums is made by taking the others off: their reports are
read again from the log, and go through the same checks.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregator.leader.admission import PARKED_BYTES, PARKED_PER_HOST, Parked
from aggregator.leader.held_windows import Sum, word_of, words_of
from aggregator.protocol.interfaces import HOST_ID_BYTES, BatchKey
from aggregator.state.state_file import hold, open_state, transaction
from transport.interface import Record
from wire.rejection import Reason
from wire.topics import REPORTS

from .messages import NAME_BYTES, UPDATE_BYTES, PartitionSum, Place, SumWanted
from .partial_sums import EpochKeyCache, Gatherer, PartialSum, report_id

Source = tuple[str, int]
"""A streaming query of Spark, and the number of its batch."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS batches (query TEXT PRIMARY KEY, newest INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS positions (part INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS log (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sums (
    task BLOB NOT NULL, cohort INTEGER NOT NULL, window INTEGER NOT NULL, part INTEGER NOT NULL,
    first INTEGER NOT NULL, until_s INTEGER NOT NULL, received_s REAL NOT NULL,
    entries BLOB NOT NULL, records BLOB NOT NULL, offsets BLOB NOT NULL, late_s REAL,
    reasons TEXT NOT NULL, vector BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS sums_of ON sums (task, cohort, window);
CREATE TABLE IF NOT EXISTS parked (
    part INTEGER NOT NULL, at INTEGER NOT NULL, value BLOB NOT NULL, appended_s REAL NOT NULL,
    received_s REAL NOT NULL, task BLOB NOT NULL, cohort INTEGER NOT NULL,
    window INTEGER NOT NULL, name BLOB NOT NULL, PRIMARY KEY (part, at));
"""

_GONE: Final = -1
"""Where a report lay in a log that is no more: it is in its sum for good."""
_PARK_APART: Final = (
    "UPDATE parked SET at = (SELECT min(0, min(at)) FROM parked) - 1 - at WHERE at >= 0"
)
"""Away from the offsets of the log that follows, and of those before."""

_DELETE_REFUSED: Final = (
    "DELETE FROM sums WHERE task = ? AND cohort = ? AND window = ? AND part = ? AND entries = x''"
)


class SumStore:
    """The sums of windows that have not ended, in memory and in one file; one process holds it."""

    def __init__(self, path: Path) -> None:
        """Open it, or make it. Raises StateUnusable, OSError."""
        other = f"{path}: expected no other Spark engine, one holds it"
        self._lock = hold(path.with_suffix(".lock"), other)
        self._db = open_state(path, _TABLES)
        self._load()

    def _load(self) -> None:
        self.sums: dict[Place, list[PartialSum]] = {}
        self.parked: list[Parked] = []
        self.positions: dict[int, int] = dict(self._db.execute("SELECT part, next FROM positions"))
        self.log = str((self._db.execute("SELECT id FROM log").fetchone() or ("",))[0])
        self._batches: dict[str, int] = dict(self._db.execute("SELECT query, newest FROM batches"))
        for row in self._db.execute("SELECT * FROM sums ORDER BY rowid"):
            self._remember(_sum_of(row))
        for row in self._db.execute("SELECT * FROM parked ORDER BY part, at"):
            self.parked.append(_parked_of(row))

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def newest(self, query: str) -> int:
        return self._batches.get(query, -1)

    def begin_at(self, positions: Mapping[int, int], log: str = "") -> None:
        """Note where reading begins, and of which log; what has been read goes on where it is."""
        with transaction(self._db) as db:
            if log:
                db.execute("REPLACE INTO log VALUES (1, ?)", (log,))
            for part, at in positions.items():
                if part not in self.positions:
                    db.execute("INSERT INTO positions VALUES (?, ?)", (part, at))
        self.positions = dict(positions) | self.positions
        self.log = log or self.log

    def begin_anew(self, positions: Mapping[int, int], log: str) -> None:
        """Begin with another log. Sums stay whole: no report can be taken out of them again."""
        with transaction(self._db) as db:
            db.execute("DELETE FROM positions")
            db.executemany("INSERT INTO positions VALUES (?, ?)", positions.items())
            db.execute("REPLACE INTO log VALUES (1, ?)", (log,))
            for row, offsets in db.execute("SELECT rowid, offsets FROM sums").fetchall():
                gone = np.full(len(offsets) // 8, _GONE, dtype="<i8").tobytes()
                db.execute("UPDATE sums SET first = 0, offsets = ? WHERE rowid = ?", (gone, row))
            db.execute(_PARK_APART)
        self._load()

    def put(
        self,
        sums: Sequence[PartialSum],
        *,
        source: Source | None = None,
        positions: Mapping[int, int] | None = None,
        parked: Sequence[Parked] = (),
        unparked: Collection[Parked] = (),
    ) -> Counter[str]:
        """Keep sums with their hosts, and what goes with them, at once.

        source      the batch that they come of, kept under its number
        positions   where reading goes on
        unparked    reports that are in the sums, or refused
        Returns     parked reports that found no place, by reason
        Raises      StorageUnavailable with nothing changed; ValueError for a batch that is kept
        """
        if source is not None and source[1] <= self.newest(source[0]):
            raise ValueError(f"batch: expected one after {self.newest(source[0])}, got {source[1]}")
        gone = {_place(report) for report in unparked}
        left = [report for report in self.parked if _place(report) not in gone]
        kept, refused = _with_places(left, parked)
        added = [self._with_refused_before(part) for part in sums]
        with transaction(self._db) as db:
            if source is not None:
                db.execute("REPLACE INTO batches VALUES (?, ?)", source)
            for slot in (positions or {}).items():
                db.execute("REPLACE INTO positions VALUES (?, ?)", slot)
            db.executemany(
                _DELETE_REFUSED, [(*_key_row(p.key), p.partition) for p in added if not p.offsets]
            )
            db.executemany(
                "INSERT INTO sums VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)", map(_sum_row, added)
            )
            db.executemany("DELETE FROM parked WHERE part = ? AND at = ?", gone)
            db.executemany(
                "INSERT OR IGNORE INTO parked VALUES (?,?,?,?,?,?,?,?,?)", map(_parked_row, kept)
            )
        if source is not None:
            self._batches[source[0]] = source[1]
        self.positions |= positions or {}
        for part in added:
            self._remember(part)
        self.parked = left + kept
        return refused

    def end(self, keys: Collection[BatchKey]) -> None:
        places = [place for place in self.sums if place[0] in keys]
        with transaction(self._db) as db:
            for key in keys:
                of = "WHERE task = ? AND cohort = ? AND window = ?"
                db.execute(f"DELETE FROM sums {of}", _key_row(key))  # noqa: S608
                db.execute(f"DELETE FROM parked {of}", _key_row(key))  # noqa: S608
        for place in places:
            del self.sums[place]
        self.parked = [report for report in self.parked if report.key not in keys]

    def _with_refused_before(self, part: PartialSum) -> PartialSum:
        """A sum without hosts, of which a place has one: whoever may write can begin them."""
        found = self.sums.get((part.key, part.partition), [])
        if part.offsets or not (before := next((p for p in found if not p.offsets), None)):
            return part
        reasons = Counter(before.reasons) + Counter(part.reasons)
        return replace(before, reasons=dict(reasons))

    def _remember(self, part: PartialSum) -> None:
        found = self.sums.setdefault((part.key, part.partition), [])
        if not part.offsets:
            found[:] = [before for before in found if before.offsets]
        found.append(part)


def _with_places(
    left: Sequence[Parked], new: Iterable[Parked]
) -> tuple[list[Parked], Counter[str]]:
    """Which new parked reports have a place; a host that fills its own loses the rest."""
    by_host = Counter(report.name[:16] for report in left)
    size = sum(len(report.record.value) for report in left)
    kept, refused = list[Parked](), Counter[str]()
    for report in new:
        host, length = report.name[:16], len(report.record.value)
        if by_host[host] >= PARKED_PER_HOST or size + length > PARKED_BYTES:
            refused[Reason.EPOCH_PARKED_FULL.value] += 1
            continue
        by_host[host] += 1
        size += length
        kept.append(report)
    return kept, refused


def _place(report: Parked) -> tuple[int, int]:
    return report.record.partition, report.record.offset


def _key_row(key: BatchKey) -> tuple[bytes, int, int]:
    return bytes(key.task_id), key.cohort, key.window


def _sum_row(part: PartialSum) -> tuple[object, ...]:
    return (
        *_key_row(part.key),
        *(part.partition, part.first, part.until_s, part.received_s, part.entries, part.records),
        np.array(part.offsets, dtype="<i8").tobytes(),
        *(part.late_s, json.dumps(dict(part.reasons)), part.vector),
    )


def _sum_of(row: Sequence[Any]) -> PartialSum:
    first, until_s, received_s, entries, records, offsets, late_s, reasons, vector = row[4:]
    placed = tuple(np.frombuffer(offsets, dtype="<i8").tolist())
    return PartialSum(
        *(BatchKey(*row[:3]), row[3], entries, late_s, first, until_s, received_s),
        *(records, placed, json.loads(reasons), vector),
    )


def _parked_row(report: Parked) -> tuple[object, ...]:
    record = report.record
    return (
        *(record.partition, record.offset, record.value, record.appended_s, report.received_s),
        *(*_key_row(report.key), report.name),
    )


def _parked_of(row: Sequence[Any]) -> Parked:
    part, at, value, appended_s, received_s, *key, name = row
    return Parked(
        Record(REPORTS, part, at, b"", value, appended_s), received_s, BatchKey(*key), name
    )


class WantedSums:
    """What was asked for and is not answered yet."""

    def __init__(self, store: SumStore) -> None:
        self._store = store
        self._wanted: dict[Place, SumWanted] = {}
        self._read_again: dict[Place, list[Record]] = {}

    def want(self, wanted: SumWanted) -> None:
        """Take a question; a later one of the same window and partition is in its place."""
        place = wanted.key, wanted.partition
        self._drop(place)
        self._wanted[place] = wanted

    def drop(self, key: BatchKey) -> None:
        for place in [place for place in self._wanted if place[0] == key]:
            self._drop(place)

    def _drop(self, place: Place) -> None:
        self._wanted.pop(place, None)
        self._read_again.pop(place, None)

    def _parts(
        self, place: Place, hosts: frozenset[bytes]
    ) -> list[tuple[PartialSum, dict[bytes, int]]]:
        """Sums with any of these hosts, and where the reports of each one's other hosts lie."""
        found = []
        for part in self._store.sums.get(place, []):
            if hosts & part.hosts.keys():
                placed = zip(part.hosts, part.offsets, strict=True)
                found.append((part, {host: at for host, at in placed if host not in hosts}))
        return found

    def to_read_again(self) -> dict[Place, list[int]]:
        """Offsets of the reports that sums which are asked for are without."""
        found = {}
        for place, wanted in self._wanted.items():
            parts = self._parts(place, wanted.hosts)
            offsets = sorted(at for _part, others in parts for at in others.values())
            if offsets and offsets[0] >= 0 and place not in self._read_again:
                found[place] = offsets
        return found

    def give_again(self, place: Place, records: Sequence[Record]) -> None:
        self._read_again[place] = list(records)

    def sums(self, gatherer: Gatherer, epochs: EpochKeyCache) -> list[PartitionSum]:
        """Answers, as far as every host was read and an update takes.

        gatherer    opens reports that were read again
        epochs      is asked for those that this takes
        Raises      ValueError where the log gave other reports than before
        """
        found, size = [], 0
        for place, wanted in list(self._wanted.items()):
            if size >= UPDATE_BYTES:
                break
            parts = self._parts(place, wanted.hosts)
            if not wanted.hosts <= {host for part, _others in parts for host in part.hosts}:
                continue  # not all of them were read
            again = [
                row for part, gone in parts for row in part.rows if row[:HOST_ID_BYTES] in gone
            ]
            for row in again:
                epochs.need(row[:NAME_BYTES])
            if again and place not in self._read_again:
                continue
            if not all(
                epochs.find(row[:HOST_ID_BYTES], row[HOST_ID_BYTES:NAME_BYTES]) for row in again
            ):
                continue
            scheme = gatherer.directory.tasks[place[0].task_id].task.scheme
            total: Sum = np.zeros((), dtype=word_of(scheme))
            for part, gone in parts:
                total = total + words_of(part.vector, scheme)
                if gone:
                    total = total - words_of(self._vector_of(place, part, gone, gatherer), scheme)
            vector = total.tobytes()
            found.append(PartitionSum(*place, len(wanted.hosts), vector))
            size += len(vector)
            self._drop(place)
        return found

    def _vector_of(
        self, place: Place, part: PartialSum, gone: Mapping[bytes, int], gatherer: Gatherer
    ) -> bytes:
        """The sum of some hosts of a partial sum, made again of their reports."""
        offsets = set(gone.values())
        records = [record for record in self._read_again[place] if record.offset in offsets]
        rows = (row for row in part.rows if row[:HOST_ID_BYTES] in gone)
        only = {row[:HOST_ID_BYTES]: report_id(row) for row in rows}
        again = gatherer.gather(place[1], records, {}, part.received_s, only)
        found = [made for made in again.sums if made.hosts.keys() == gone.keys()]
        if len(found) != 1:
            raise ValueError(f"reports read again: expected {len(gone)} as before, got others")
        return found[0].vector
