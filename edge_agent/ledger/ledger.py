"""The durable privacy ledger of a host, or of simulated ones: entries and sealed bytes are
one transaction with fsync; no byte may leave before it, and the fence beside the key, hold.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from . import ledger_db
from .ledger_loss import Fence, FenceMark, Salvage, proven_mark, read_lost, set_aside
from .ledger_records import (
    FREEZE_S,
    ClockSetBack,
    EpochOpening,
    HostEntry,
    KnownRoster,
    KnownSeries,
    LedgerCorrupt,
    LedgerExists,
    LedgerView,
    SealedRecord,
    SpooledRecord,
    SpoolLimits,
    no_fault,
)
from .left_reports import Gone, LeftReport, LeftReports

CLOCK_TOLERANCE_S: Final = 2
"""A clock is read in whole seconds, and disciplined by less."""
_EPOCH_MEMORY_S: Final = 2 * 3600
_PRUNE_EVERY_S: Final = 3600


class Ledger:
    """One ledger file and its fence, held by one process at a time."""

    def __init__(
        self,
        db: sqlite3.Connection,
        fence: Fence,
        mark: FenceMark,
        limits: SpoolLimits | None,
        fault_point: Callable[[str], None],
    ) -> None:
        self._db, self._fence, self._mark = db, fence, mark
        self._fault_point = fault_point
        self._pruned_s = 0
        with ledger_db.translated():
            self._spool = ledger_db.Spool(db, limits or SpoolLimits())
            self._left = LeftReports(db)
            self._clock_s: int = self._meta("clock_s")
            self._signed_s: int = self._meta("signed_s", 0)
            rows = db.execute("SELECT host, series, max(window_start) FROM entries GROUP BY 1, 2")
            self._last_start: dict[tuple[bytes, str], int] = {(h, s): w for h, s, w in rows}

    @classmethod
    def create(
        cls,
        path: Path,
        fence_path: Path,
        hosts: Iterable[bytes],
        binding: bytes,
        now_s: int,
        limits: SpoolLimits | None = None,
        fault_point: Callable[[str], None] = no_fault,
    ) -> Self:
        """Make the ledger of hosts that never published, tied to the machine by `binding`.
        Raises      LedgerExists when the ledger or its fence is there already
        """
        if path.exists() or fence_path.exists():
            raise LedgerExists(f"expected no ledger, found {path} or {fence_path}")
        return cls._create(path, fence_path, hosts, binding, now_s, limits, fault_point)

    @classmethod
    def recover(
        cls,
        path: Path,
        fence_path: Path,
        *,
        hosts: Iterable[bytes],
        binding: bytes,
        now_s: int,
        signed_time_s: int,
        known: Iterable[KnownSeries],
        limits: SpoolLimits | None = None,
    ) -> Self:
        """Start a fresh ledger after a loss; the old files are kept aside under `.lost-<now>`.

        What the old files still tell is carried over: spent windows, epochs, series. Known series
        resume with the first window that starts after everything seen and max(now, signed time).
        The epochs' counter starts from the clock, above every counter that was used.
        signed_time_s   the latest time that an aggregator has signed
        known           series and weights that the signed roster and tasks gave this host
        Raises          ClockSetBack when a ledger that can be read saw a later time: it is not
                        lost, the clock is behind; LedgerBusy. After LedgerFull or
                        FenceUnwritable another call reads what was set aside
        """
        if fence_path.exists():
            Fence.open(fence_path).close()  # LedgerBusy while an agent runs
        hosts = tuple(hosts)
        old = read_lost(path, hosts, now_s + FREEZE_S)
        _require_clock(max(old.clock_s, old.signed_s), now_s)
        set_aside(path, now_s)
        if fence_path.exists():
            fence_path.rename(f"{fence_path}.lost-{now_s}")
        resume_s = max(now_s, signed_time_s, old.clock_s, old.newest_s)
        return cls._create(
            path, fence_path, hosts, binding, now_s, limits, no_fault, old, resume_s, known
        )

    @classmethod
    def _create(
        cls,
        path: Path,
        fence_path: Path,
        hosts: Iterable[bytes],
        binding: bytes,
        now_s: int,
        limits: SpoolLimits | None,
        fault_point: Callable[[str], None],
        old: Salvage | None = None,
        resume_after_s: int = 0,
        known: Iterable[KnownSeries] = (),
    ) -> Self:
        old = old or Salvage()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark = FenceMark(os.urandom(16), 1)
        values = {
            "ledger_id": mark.ledger_id,
            "generation": mark.generation,
            "binding": binding,
            "clock_s": now_s,
            "signed_s": old.signed_s,
            "kept_from_s": 0,
            "resume_after_s": resume_after_s,
            "freeze_until_s": now_s + FREEZE_S if resume_after_s else 0,
        }
        with ExitStack() as opened:  # a making that fails holds no lock: it is begun again
            fence = Fence.open(fence_path, create=True)
            opened.callback(fence.close)
            db = ledger_db.connect(path, create=True)
            opened.callback(db.close)
            with ledger_db.transaction(db):
                db.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
                counters = ((host, max(now_s, old.counters.get(host, 0))) for host in hosts)
                db.executemany("INSERT INTO hosts VALUES (?, ?)", counters)
                spent = old.entries.values()
                db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", spent)
                db.executemany("INSERT OR IGNORE INTO epochs VALUES (?, ?, ?)", old.epochs)
                ledger_db.upsert_series(db, [*old.series.values(), *known])
            # Both slots are written now, so that a full disk cannot stop a later fence write.
            fence.write(FenceMark(mark.ledger_id, 0))
            fence.write(mark)
            ledger = cls(db, fence, mark, limits, fault_point)
            opened.pop_all()
            return ledger

    @classmethod
    def open(
        cls,
        path: Path,
        fence_path: Path,
        binding: bytes,
        limits: SpoolLimits | None = None,
        fault_point: Callable[[str], None] = no_fault,
    ) -> Self:
        """Open a ledger and prove that it is this machine's newest. Raises LedgerRefused."""
        fence = Fence.open(fence_path)
        try:
            db = ledger_db.connect(path, create=False)
            try:
                mark = proven_mark(db, fence, path, binding)
                ledger = cls(db, fence, mark, limits, fault_point)
            except BaseException:
                db.close()
                raise
        except BaseException:
            fence.close()
            raise
        return ledger

    def view(self, hosts: Sequence[bytes]) -> LedgerView:
        """Give what a participant of hosts must know, in order. Raises LedgerMissing."""
        with ledger_db.translated():
            return ledger_db.ledger_view(self._db, hosts)

    def commit_epochs(
        self, openings: Sequence[EpochOpening], records: Sequence[SealedRecord], now_s: int
    ) -> tuple[int, ...]:
        """Count epochs and spool their records durably; give the records' spool ids.
        Raises      ClockSetBack when the clock reads less than an aggregator has signed
        """
        _require_clock(self._signed_s, now_s)
        self._spool.require_room(records)

        def write() -> tuple[int, ...]:
            rows = [(o.ledger_ctr, o.host_id) for o in openings]
            self._db.executemany(
                "UPDATE hosts SET epoch_ctr = max(epoch_ctr, ?) WHERE host = ?", rows
            )
            self._db.executemany(
                "INSERT INTO epochs VALUES (?, ?, ?)",
                ((o.host_id, o.ledger_ctr, o.opened_s) for o in openings),
            )
            return self._spool.insert(records)

        return self._commit(write, records, now_s)

    def commit_sealed(
        self,
        entries: Sequence[HostEntry],
        records: Sequence[SealedRecord],
        now_s: int,
        keep_from_s: int = 0,
        left: Sequence[LeftReport] = (),
    ) -> tuple[int, ...]:
        """Spend windows and spool their sealed reports in one transaction; `left` is for the owner.
        Raises      WindowSpent, SpoolFull, LedgerFull, ClockSetBack: nothing was spent;
                    LedgerRefused: stop, the file can no longer be trusted
        """
        _require_clock(self._signed_s, now_s)
        self._spool.require_room(records, entries)
        for spent in entries:
            # One that was spent, or comes before one that is over and was.
            names = ledger_db.counted_as(spent.entry.series)
            last_s = max(self._last_start.get((spent.host_id, name), -1) for name in names)
            if spent.entry.start <= last_s:
                with ledger_db.translated():
                    ledger_db.require_unspent(self._db, spent, now_s)

        def write() -> tuple[int, ...]:
            self._db.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", map(ledger_db.entry_row, entries)
            )
            if keep_from_s > ledger_db.kept_from(self._db):
                self._db.execute("DELETE FROM entries WHERE window_end < ?", (keep_from_s,))
                self._set_meta("kept_from_s", keep_from_s)
            spool_ids = self._spool.insert(records)
            self._left.insert(left, spool_ids[: len(left)])
            return spool_ids

        ids = self._commit(write, records, now_s)
        for spent in entries:
            place = spent.host_id, spent.entry.series
            self._last_start[place] = max(spent.entry.start, self._last_start.get(place, -1))
        return ids

    def _commit(
        self, write: Callable[[], tuple[int, ...]], records: Sequence[SealedRecord], now_s: int
    ) -> tuple[int, ...]:
        mark = FenceMark(self._mark.ledger_id, self._mark.generation + 1)
        clock_s = max(self._clock_s, now_s)
        self._fault_point("ledger:begin")
        with ledger_db.transaction(self._db):
            ids = write()
            self._prune(now_s)
            self._set_meta("generation", mark.generation)
            self._set_meta("clock_s", clock_s)
            self._fault_point("ledger:before-commit")
        # The file first, the fence second: a crash between them leaves the file one ahead, which
        # is accepted, and nothing of that transaction has left the process yet.
        self._fault_point("ledger:before-fence")
        self._fence.write(mark)
        self._fault_point("ledger:after-fence")
        self._mark, self._clock_s = mark, clock_s
        self._spool.records += len(records)
        self._spool.size_bytes += sum(len(record.value) for record in records)
        return ids

    def _prune(self, now_s: int) -> None:
        if now_s - self._pruned_s < _PRUNE_EVERY_S:
            return
        self._db.execute("DELETE FROM epochs WHERE opened_s < ?", (now_s - _EPOCH_MEMORY_S,))
        self._left.prune(now_s)
        self._pruned_s = now_s

    def remember_series(
        self, known: Sequence[KnownSeries], signed: Mapping[bytes, bytes] = MappingProxyType({})
    ) -> None:
        """Record accepted versions, that none goes back, and the signed tasks by task_id."""
        with ledger_db.transaction(self._db):
            ledger_db.upsert_series(self._db, known)
            self._left.keep_tasks(signed)

    def remember_roster(self, known: KnownRoster) -> None:
        """Record a verified roster, so that the one in force is known after a restart."""
        with ledger_db.transaction(self._db):
            ledger_db.keep_roster(self._db, known)

    def note_signed_time(self, signed_time_s: int) -> None:
        """Record a time that an aggregator has signed: the clock is never before it."""
        if signed_time_s > self._signed_s:
            with ledger_db.transaction(self._db):
                self._set_meta("signed_s", signed_time_s)
            self._signed_s = signed_time_s

    def spooled(self, limit: int = 1000, after_id: int = 0) -> list[SpooledRecord]:
        """Give the oldest sealed records that the transport has not acknowledged."""
        with ledger_db.translated():
            return self._spool.oldest(limit, after_id)

    def forget(self, ids: Sequence[int], gone: Gone | None = None) -> None:
        """Drop records that the transport holds durably, or will never take; gone says which."""
        with ledger_db.transaction(self._db):
            if gone is not None:
                self._left.settle(ids, gone)
            self._spool.delete(ids)
        with ledger_db.translated():
            self._spool.recount()

    def drop_expired(self, now_s: int) -> int:
        """Drop sealed records that no aggregator accepts any more; give how many."""
        with ledger_db.transaction(self._db):
            self._left.expire(now_s)
            dropped = self._spool.delete_expired(now_s)
        with ledger_db.translated():
            self._spool.recount()
        return dropped

    @property
    def spool_records(self) -> int:
        return self._spool.records

    @property
    def spool_bytes(self) -> int:
        return self._spool.size_bytes

    def close(self) -> None:
        self._db.close()
        self._fence.close()

    def _meta(self, name: str, missing: int | None = None) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        if row is None and missing is not None:
            return missing  # a ledger of an earlier agent
        if row is None or not isinstance(row[0], int):
            raise LedgerCorrupt(f"expected the ledger's {name}, found none")
        return row[0]

    def _set_meta(self, name: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _require_clock(least_s: int, now_s: int) -> None:
    if now_s < least_s - CLOCK_TOLERANCE_S:
        raise ClockSetBack(f"expected a clock at {least_s} s or later, got {now_s} s")
