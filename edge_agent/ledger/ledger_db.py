"""The ledger's SQLite file: schema, durable settings, rows as values, and what its errors mean."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from privacy.budget import Entry, keep_from
from transport.files import sqlite_file
from transport.files.sqlite_file import OtherSchema, SqliteFile, code_of
from wire import labels
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.roster import PlanMembership
from wire.task import Task, series_name

from .ledger_records import (
    LONG_WINDOW_S,
    Crowd,
    HostEntry,
    HostSpending,
    KnownRoster,
    KnownSeries,
    LedgerBusy,
    LedgerCorrupt,
    LedgerFull,
    LedgerMissing,
    LedgerOfOtherVersion,
    LedgerRefused,
    LedgerView,
    SealedRecord,
    SpooledRecord,
    SpoolFull,
    SpoolLimits,
    WindowSpent,
)

SCHEMA_VERSION: Final = 2
_REFUSALS: Final = {
    sqlite3.SQLITE_FULL: LedgerFull,
    sqlite3.SQLITE_BUSY: LedgerBusy,
    sqlite3.SQLITE_LOCKED: LedgerBusy,
    sqlite3.SQLITE_CORRUPT: LedgerCorrupt,
    sqlite3.SQLITE_NOTADB: LedgerCorrupt,
    sqlite3.SQLITE_ERROR: LedgerCorrupt,
}
_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE hosts (host BLOB PRIMARY KEY, epoch_ctr INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE epochs (host BLOB NOT NULL, ledger_ctr INTEGER NOT NULL, opened_s INTEGER NOT NULL,
  PRIMARY KEY (host, ledger_ctr)) WITHOUT ROWID;
CREATE TABLE series (series TEXT PRIMARY KEY, version INTEGER NOT NULL,
  weight_millionths INTEGER NOT NULL, window_s INTEGER NOT NULL, task_id BLOB NOT NULL)
  WITHOUT ROWID;
CREATE TABLE entries (host BLOB NOT NULL, series TEXT NOT NULL, window_start INTEGER NOT NULL,
  window_end INTEGER NOT NULL, weight_millionths INTEGER NOT NULL, touched INTEGER NOT NULL,
  PRIMARY KEY (host, series, window_start)) WITHOUT ROWID;
CREATE INDEX entries_by_end ON entries (window_end);
CREATE TABLE spool (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB NOT NULL,
  value BLOB NOT NULL, publish_at_ms INTEGER NOT NULL, expires_s INTEGER NOT NULL);
"""

_ROSTERS: Final = """
CREATE TABLE IF NOT EXISTS rosters (leader_pk BLOB NOT NULL, helper_pk BLOB NOT NULL,
  version INTEGER NOT NULL, effective_from INTEGER NOT NULL, content TEXT NOT NULL,
  PRIMARY KEY (leader_pk, helper_pk, version)) WITHOUT ROWID
"""
"""Apart: a ledger of an earlier agent lacks it."""

_LEFT: Final = """;
CREATE TABLE IF NOT EXISTS left_reports (host BLOB NOT NULL, series TEXT NOT NULL,
  window_start INTEGER NOT NULL, window_end INTEGER NOT NULL, task_id BLOB NOT NULL,
  cohort INTEGER NOT NULL, epoch_id BLOB NOT NULL, report_id BLOB NOT NULL, tag_h BLOB NOT NULL,
  bytes INTEGER NOT NULL, sealed_s INTEGER NOT NULL, fate TEXT NOT NULL, fate_s INTEGER,
  log TEXT NOT NULL, spool_id INTEGER, PRIMARY KEY (host, series, window_start)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS left_by_end ON left_reports (window_end);
CREATE INDEX IF NOT EXISTS left_by_spool ON left_reports (spool_id) WHERE spool_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS tasks (task_id BLOB PRIMARY KEY, signed BLOB NOT NULL) WITHOUT ROWID
"""
"""What left this host, of which the ledger itself asks nothing; apart, for the same reason."""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file, durable at each commit. Raises LedgerRefused."""
    if not create:
        _need(path)
    file = SqliteFile(
        tables=(_SCHEMA if create else "") + _ROSTERS + _LEFT,
        version=SCHEMA_VERSION,
        unmarked=SCHEMA_VERSION if create else 0,
        follows_links=True,
    )
    with translated():
        return file.open(path)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open the file for `agent ledger show`, beside a running agent."""
    _need(path)
    with translated():
        return sqlite_file.connect_readonly(path, version=SCHEMA_VERSION, checked=True)


def _need(path: Path) -> None:
    if not path.exists():
        raise LedgerMissing(f"expected a ledger at {path}, found no file")


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run one transaction: durable when the block ends, undone when it raises."""
    with translated(), sqlite_file.transaction(db):
        yield


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn SQLite's errors into this ledger's refusals."""
    try:
        yield
    except OtherSchema as problem:
        raise (LedgerOfOtherVersion if problem.found else LedgerCorrupt)(str(problem)) from None
    except sqlite3.Error as error:
        refusal = _REFUSALS.get(code_of(error), LedgerRefused)
        raise refusal(f"SQLite says: {error}") from error


ROSTERS_KEPT: Final = 8
"""Of each pair of aggregators."""

_FORGET_ROSTERS: Final = """
DELETE FROM rosters WHERE leader_pk = ?1 AND helper_pk = ?2 AND version NOT IN (SELECT version
  FROM rosters WHERE leader_pk = ?1 AND helper_pk = ?2 ORDER BY version DESC LIMIT ?3)
"""


def read_rosters(db: sqlite3.Connection) -> tuple[KnownRoster, ...]:
    """Give what is kept, of each pair of aggregators the oldest version first."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'rosters'").fetchone():
        return ()  # a ledger of an earlier agent, read beside it
    rows = db.execute("SELECT * FROM rosters ORDER BY leader_pk, helper_pk, version")
    return tuple(_known_roster(*row) for row in rows)


def keep_roster(db: sqlite3.Connection, known: KnownRoster) -> None:
    """Keep a roster inside the caller's transaction, and the newest of its aggregators."""
    parties = known.leader_pk, known.helper_pk
    row = (*parties, known.version, known.effective_from, _roster_content(known))
    db.execute("INSERT OR IGNORE INTO rosters VALUES (?, ?, ?, ?, ?)", row)
    db.execute(_FORGET_ROSTERS, (*parties, ROSTERS_KEPT))


def _roster_content(known: KnownRoster) -> str:
    plans = {
        host.hex(): plan and [[m.series, m.cohort, m.weight_millionths] for m in plan.values()]
        for host, plan in known.plans.items()
    }
    crowds = [[*k, *v] for k, v in known.crowds.items()]
    return json.dumps({"plans": plans, "crowds": crowds, "fleet": known.fleet})


def _known_roster(leader_pk: bytes, helper_pk: bytes, *row: Any) -> KnownRoster:
    version, effective_from, content = row
    found = json.loads(content)
    plans = {
        bytes.fromhex(host): None if plan is None else {m[0]: PlanMembership(*m) for m in plan}
        for host, plan in found["plans"].items()
    }
    crowds = {(series, cohort): Crowd(*counts) for series, cohort, *counts in found["crowds"]}
    fleet = found.get("fleet", "")  # an earlier agent did not say it
    return KnownRoster(leader_pk, helper_pk, version, effective_from, plans, crowds, fleet)


IDENTITY = frozenset({"ledger_id", "generation", "binding", "clock_s", "resume_after_s"})


def read_meta(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Read the ledger's identity; LedgerCorrupt when it has none."""
    with translated():
        meta = dict(db.execute("SELECT name, value FROM meta"))
    if not meta.keys() >= IDENTITY:
        raise LedgerCorrupt(f"expected the ledger's identity in {path}, found none")
    return meta


def read_view(path: Path) -> LedgerView:
    """Read a ledger beside a running agent, for `agent ledger show`; proves nothing."""
    db = connect_readonly(path)
    try:
        read_meta(db, path)
        with translated():
            hosts = [row[0] for row in db.execute("SELECT host FROM hosts ORDER BY host")]
            return ledger_view(db, hosts)
    finally:
        db.close()


def kept_from(db: sqlite3.Connection) -> int:
    """Give the time before which entries are forgotten; an earlier agent did not say it."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    if "kept_from_s" in meta:
        return int(meta["kept_from_s"])
    longest = db.execute("SELECT coalesce(max(window_s), 0) FROM series").fetchone()[0]
    return max(0, keep_from(meta["clock_s"], longest))


def ledger_view(db: sqlite3.Connection, hosts: Sequence[bytes]) -> LedgerView:
    """Collect what a participant of these hosts must know, in their order."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    series = MappingProxyType(known_series(db))
    views = tuple(host_view(db, host) for host in hosts)
    since = kept_from(db), meta["resume_after_s"], meta["freeze_until_s"]
    return LedgerView(views, series, read_rosters(db), *since)


def known_series(db: sqlite3.Connection) -> dict[str, KnownSeries]:
    """Give accepted series by key. An earlier agent wrote bare names: the Leader is that of the
    signed task, where it is kept; else the name stays alone, and binds every Leader.
    """
    known: dict[str, KnownSeries] = {}
    kept = "SELECT 1 FROM sqlite_master WHERE name = 'tasks'"
    signed = dict(db.execute("SELECT * FROM tasks")) if db.execute(kept).fetchone() else {}
    for name, *values in db.execute("SELECT * FROM series ORDER BY series").fetchall():
        key, task_id = name, values[-1]
        if name == series_name(name) and task_id in signed:
            with contextlib.suppress(ReportRejected):
                body = Signed.decode(signed[task_id], labels.TASK).body
                key = Task.decode_body(body).series_key
        found = KnownSeries(key, *values)
        if found.version >= known.get(key, found).version:
            known[key] = found
    return known


def host_view(db: sqlite3.Connection, host: bytes) -> HostSpending:
    """Collect one host's entries and epochs; LedgerMissing when the ledger is of others."""
    row = db.execute("SELECT epoch_ctr FROM hosts WHERE host = ?", (host,)).fetchone()
    if row is None:
        raise LedgerMissing(f"expected host {host.hex()} in this ledger, found others only")
    entries = db.execute(
        "SELECT series, window_start, window_end, weight_millionths, touched FROM entries "
        "WHERE host = ? ORDER BY window_start",
        (host,),
    )
    opened = db.execute("SELECT opened_s FROM epochs WHERE host = ? ORDER BY ledger_ctr", (host,))
    return HostSpending(
        host,
        tuple(Entry(sys.intern(series), *fields) for series, *fields in entries),
        row[0],
        tuple(opened_s for (opened_s,) in opened),
    )


def entry_row(spent: HostEntry) -> tuple[bytes, str, int, int, int, int]:
    e = spent.entry
    return spent.host_id, e.series, e.start, e.end, e.weight_millionths, e.T


_SPENT: Final = """
SELECT coalesce(max(CASE WHEN window_end <= ? THEN window_start END), -1),
  coalesce(max(window_start = ?), 0) FROM entries WHERE host = ? AND series IN (?, ?)
"""


def counted_as(series: str) -> tuple[str, str]:
    """Give the names under which a series' entries stand: an earlier agent wrote no Leader, and
    what it spent counts for each.
    """
    return series, series_name(series)


def require_unspent(db: sqlite3.Connection, spent: HostEntry, now_s: int) -> None:
    """Raise WindowSpent unless a window is after the last that is over, and not spent."""
    start, series = spent.entry.start, spent.entry.series
    names = counted_as(series)
    last, same = db.execute(_SPENT, (now_s, start, spent.host_id, *names)).fetchone()
    if same or start <= last or start < kept_from(db):
        raise WindowSpent(f"series {names[1]!r}: expected a window after {last}, got {start}")


def upsert_series(db: sqlite3.Connection, known: Iterable[KnownSeries]) -> None:
    """Record accepted series inside the caller's transaction; a version never goes back."""
    db.executemany(
        "INSERT INTO series VALUES (?, ?, ?, ?, ?) ON CONFLICT (series) DO UPDATE SET "
        "version = max(version, excluded.version), weight_millionths = excluded.weight_millionths, "
        "task_id = excluded.task_id",
        ((k.series, k.version, k.weight_millionths, k.window_s, k.task_id) for k in known),
    )


class Spool:
    """Sealed records that have not been acknowledged by the transport, oldest first."""

    def __init__(self, db: sqlite3.Connection, limits: SpoolLimits) -> None:
        self._db = db
        self._limits = limits
        self.records = 0
        self.size_bytes = 0
        self.recount()

    def recount(self) -> None:
        row = self._db.execute("SELECT count(*), coalesce(sum(length(value)), 0) FROM spool")
        self.records, self.size_bytes = row.fetchone()

    def require_room(
        self, records: Sequence[SealedRecord], entries: Sequence[HostEntry] = ()
    ) -> None:
        """Raise SpoolFull when records, of reports with their `entries`, would pass a bound."""
        count = self.records + len(records)
        size = self.size_bytes + sum(len(record.value) for record in records)
        short = any(spent.entry.end - spent.entry.start < LONG_WINDOW_S for spent in entries)
        bounds = self._limits.for_short_windows if short else self._limits
        if count > bounds.max_records or size > bounds.max_bytes:
            raise SpoolFull(count, size, bounds.max_records, bounds.max_bytes)

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
