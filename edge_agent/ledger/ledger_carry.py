"""A host's next identity takes its ledger over: what the machine has spent stays spent.

The budget is the machine's, not the key's. So a new key, or other GPUs, get no new ledger: the file
goes on, in one transaction, under the new host id and the new binding.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .ledger_db import connect, transaction, translated
from .ledger_errors import ClockSetBack, LedgerOfOthers
from .ledger_loss import Fence, FenceMark, proven_mark


@dataclass(frozen=True, slots=True)
class Identity:
    """A host id and what binds its key to the machine (`host_binding`)."""

    host: bytes
    binding: bytes = field(repr=False)


def carry_over(path: Path, fence_path: Path, old: Identity, new: Identity, now_s: int) -> bool:
    """Hand a sound ledger on, with every entry and the sealed records that wait.

    The epochs of the old identity end with its key; the new one counts from the clock.
    Returns     False when the ledger is the new identity's already: an earlier call did it
    Raises      LedgerRefused: nothing is carried over, and nothing changed
    """
    with _held(path, fence_path) as (db, fence):
        if _holds(db, new.host):
            proven_mark(db, fence, path, new.binding)
            return False
        mark = proven_mark(db, fence, path, old.binding)
        _require_alone(db, path, old.host)
        _require_clock(db, now_s)
        after = FenceMark(mark.ledger_id, mark.generation + 1)
        with transaction(db):
            _rename(db, old.host, new, now_s)
            _set(db, "generation", after.generation)
        # As at every commit: the file first, so that a crash leaves it one ahead of its fence.
        fence.write(after)
        return True


@contextlib.contextmanager
def _held(path: Path, fence_path: Path) -> Iterator[tuple[sqlite3.Connection, Fence]]:
    """Hold the ledger against any agent. Raises LedgerRefused."""
    fence = Fence.open(fence_path)
    try:
        with contextlib.closing(connect(path, create=False)) as db:
            yield db, fence
    finally:
        fence.close()


def _holds(db: sqlite3.Connection, host: bytes) -> bool:
    with translated():
        return db.execute("SELECT 1 FROM hosts WHERE host = ?", (host,)).fetchone() is not None


def _require_alone(db: sqlite3.Connection, path: Path, host: bytes) -> None:
    with translated():
        hosts = [row[0] for row in db.execute("SELECT host FROM hosts")]
    if hosts != [host]:
        raise LedgerOfOthers(
            f"expected {path} to be of host {host.hex()} alone, found {len(hosts)} hosts, "
            f"first {hosts[0].hex() if hosts else 'none'}"
        )


def _require_clock(db: sqlite3.Connection, now_s: int) -> None:
    with translated():
        row = db.execute("SELECT value FROM meta WHERE name = 'signed_s'").fetchone()
    if row is not None and now_s < row[0]:
        raise ClockSetBack(f"expected a clock at {row[0]} s or later, got {now_s} s")


def _rename(db: sqlite3.Connection, old: bytes, new: Identity, now_s: int) -> None:
    """Give entries to the new identity; what rosters said of the old one is read anew."""
    db.execute("UPDATE entries SET host = ? WHERE host = ?", (new.host, old))
    db.execute("DELETE FROM epochs")
    db.execute("DELETE FROM rosters")
    db.execute("DELETE FROM hosts")
    db.execute("INSERT INTO hosts VALUES (?, ?)", (new.host, now_s))
    _set(db, "binding", new.binding)


def _set(db: sqlite3.Connection, name: str, value: int | bytes) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
