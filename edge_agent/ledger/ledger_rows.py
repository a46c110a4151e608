"""The ledger's rows as values, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from privacy.budget import Entry, keep_from

from .ledger_db import connect_readonly, translated
from .ledger_errors import LedgerCorrupt, LedgerMissing
from .ledger_records import HostEntry, HostView, KnownSeries, LedgerView
from .ledger_rosters import read_rosters

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
    """Give the time before which ended entries are forgotten, seconds.

    A ledger of an earlier agent does not say: it kept them three weeks and the longest window.
    """
    meta = dict(db.execute("SELECT name, value FROM meta"))
    if "kept_from_s" in meta:
        return int(meta["kept_from_s"])
    longest = db.execute("SELECT coalesce(max(window_s), 0) FROM series").fetchone()[0]
    return max(0, keep_from(meta["clock_s"], longest))


def ledger_view(db: sqlite3.Connection, hosts: Sequence[bytes]) -> LedgerView:
    """Collect what a participant of these hosts must know, in their order."""
    meta = dict(db.execute("SELECT name, value FROM meta"))
    rows = db.execute("SELECT series, version, weight_millionths, window_s, task_id FROM series")
    series = MappingProxyType({row[0]: KnownSeries(*row) for row in rows})
    views = tuple(host_view(db, host) for host in hosts)
    since = kept_from(db), meta["resume_after_s"], meta["freeze_until_s"]
    return LedgerView(views, series, read_rosters(db), *since)


def host_view(db: sqlite3.Connection, host: bytes) -> HostView:
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
    return HostView(
        host,
        tuple(Entry(*fields) for fields in entries),
        row[0],
        tuple(opened_s for (opened_s,) in opened),
    )


def entry_row(spent: HostEntry) -> tuple[bytes, str, int, int, int, int]:
    """Give the row of table `entries`."""
    e = spent.entry
    return spent.host_id, e.series, e.start, e.end, e.weight_millionths, e.T


def upsert_series(db: sqlite3.Connection, known: Iterable[KnownSeries]) -> None:
    """Record accepted series inside the caller's transaction; a version never goes back."""
    db.executemany(
        "INSERT INTO series VALUES (?, ?, ?, ?, ?) ON CONFLICT (series) DO UPDATE SET "
        "version = max(version, excluded.version), weight_millionths = excluded.weight_millionths, "
        "task_id = excluded.task_id",
        ((k.series, k.version, k.weight_millionths, k.window_s, k.task_id) for k in known),
    )
