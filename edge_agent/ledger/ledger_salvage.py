"""What the files of a lost ledger still tell: its clock, what it spent, which epochs it counted."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from transport.sqlite_file import connect_readonly

from .ledger_db import connect
from .ledger_errors import LedgerRefused

_SIDE_FILES: Final = ("", "-wal", "-shm")
_Row = tuple[Any, ...]


@dataclass(slots=True)
class Salvage:
    """What the old files of a ledger tell of these hosts.

    clock_s     latest time of a file that passes its checks; 0 without one
    newest_s    latest end of a spent window, and latest clock of a damaged file
    counters    last epoch counter per host
    entries     rows of table `entries`; the same window in two files is one
    """

    clock_s: int = 0
    newest_s: int = 0
    counters: dict[bytes, int] = field(default_factory=dict)
    entries: dict[tuple[bytes, str, int], _Row] = field(default_factory=dict)
    epochs: set[_Row] = field(default_factory=set)
    series: dict[str, _Row] = field(default_factory=dict)


def read_lost(path: Path, hosts: Iterable[bytes], believe_until_s: int) -> Salvage:
    """Read a ledger and its copies set aside, as far as they can be read.

    believe_until_s   a damaged file's times count up to it: garbage must not silence a host
    """
    found, mine = Salvage(), frozenset(hosts)
    copies = sorted(path.parent.glob(f"{path.name}.lost-*"))
    for one in (path, *(copy for copy in copies if not copy.name.endswith(_SIDE_FILES[1:]))):
        if not one.exists():
            continue
        try:
            db = connect(one, create=False)
        except (LedgerRefused, OSError):
            _read_damaged(one, found, believe_until_s)
            continue
        with contextlib.closing(db), contextlib.suppress(sqlite3.Error, TypeError):
            _read_whole(db, found, mine)
    return found


def set_aside(path: Path, now_s: int) -> None:
    """Rename a ledger's files to `.lost-<now>`; its journal goes with it under the new name."""
    for suffix in _SIDE_FILES:
        old = Path(f"{path}{suffix}")
        if old.exists():
            old.rename(f"{path}.lost-{now_s}{suffix}")


def _read_whole(db: sqlite3.Connection, found: Salvage, hosts: frozenset[bytes]) -> None:
    clock_s, newest_s = _times(db)
    found.clock_s = max(found.clock_s, clock_s)
    found.newest_s = max(found.newest_s, newest_s)
    for host, counter in db.execute("SELECT host, epoch_ctr FROM hosts"):
        found.counters[host] = max(counter, found.counters.get(host, 0))
    for row in _rows(db, "entries"):
        if row[0] in hosts:
            found.entries.setdefault(row[:3], row)
    found.epochs |= {row for row in _rows(db, "epochs") if row[0] in hosts}
    for row in _rows(db, "series"):
        if row[1] >= found.series.get(row[0], ("", 0))[1]:
            found.series[row[0]] = row


def _rows(db: sqlite3.Connection, table: str) -> Iterator[_Row]:
    yield from db.execute(f"SELECT * FROM {table}")  # noqa: S608  (names of this module)


def _times(db: sqlite3.Connection) -> tuple[int, int]:
    clock = db.execute("SELECT value FROM meta WHERE name = 'clock_s'").fetchone()
    newest = db.execute("SELECT coalesce(max(window_end), 0) FROM entries").fetchone()
    return int(clock[0]), int(newest[0])


def _read_damaged(path: Path, found: Salvage, believe_until_s: int) -> None:
    unreadable = (sqlite3.Error, TypeError, ValueError, OverflowError)
    with contextlib.suppress(*unreadable), contextlib.closing(connect_readonly(path)) as db:
        times = [time for time in _times(db) if time <= believe_until_s]
        found.newest_s = max(found.newest_s, *times, 0)
