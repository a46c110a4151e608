"""How a lost or copied ledger is told, by a fence, and what the files of a lost one still tell.
A fence has two slots, written in turn so that a torn write leaves one: ledger_id 16 ||
generation 8 || SHA-256 of both [:8]. The budget is the machine's: a host's next key, or other
GPUs, take the ledger over in one transaction.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from transport.files.sqlite_file import connect_readonly

from .ledger_db import connect, known_series, read_meta, transaction, translated
from .ledger_records import (
    ClockSetBack,
    FenceUnwritable,
    KnownSeries,
    LedgerBusy,
    LedgerCloned,
    LedgerCorrupt,
    LedgerMissing,
    LedgerOfOthers,
    LedgerRefused,
    LedgerRolledBack,
)

_SLOT: Final = struct.Struct(">16sQ8s")
# Slots lie a sector apart: a torn sector cannot take both.
_STRIDE: Final = 4096


@dataclass(frozen=True, slots=True)
class FenceMark:
    """The ledger a fence belongs to and the newest generation it has seen."""

    ledger_id: bytes
    generation: int

    def encode(self) -> bytes:
        head = self.ledger_id + self.generation.to_bytes(8, "big")
        return head + hashlib.sha256(head).digest()[:8]


def _decode_slot(slot: bytes) -> FenceMark | None:
    if len(slot) != _SLOT.size:
        return None
    ledger_id, generation, check = _SLOT.unpack(slot)
    mark = FenceMark(ledger_id, generation)
    return mark if mark.encode()[-8:] == check else None


class Fence:
    """An open, exclusively locked fence file."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> Self:
        """Open and lock the file. Raises LedgerMissing, LedgerBusy: another process holds it."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise LedgerMissing(f"expected the ledger's fence {path}, found no file") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise LedgerBusy(f"expected to be the only agent, {path} is locked") from None
        return cls(fd, path)

    def read(self) -> FenceMark:
        """Give the newest readable slot; LedgerCorrupt when neither is."""
        slots = (_decode_slot(os.pread(self._fd, _SLOT.size, k * _STRIDE)) for k in (0, 1))
        marks = [mark for mark in slots if mark is not None]
        if not marks:
            raise LedgerCorrupt(f"expected a fence slot in {self._path}, found none that checks")
        return max(marks, key=lambda mark: mark.generation)

    def write(self, mark: FenceMark) -> None:
        """Write a mark durably, not over the newest one. Raises FenceUnwritable."""
        try:
            os.pwrite(self._fd, mark.encode(), (mark.generation % 2) * _STRIDE)
            os.fdatasync(self._fd)
        except OSError as error:
            raise FenceUnwritable(f"expected to write the ledger's fence: {error}") from error

    def close(self) -> None:
        os.close(self._fd)


def proven_mark(db: sqlite3.Connection, fence: Fence, path: Path, binding: bytes) -> FenceMark:
    """Give a ledger's mark once it is this machine's, and as new as its fence."""
    meta = read_meta(db, path)
    if meta["binding"] != binding:
        raise LedgerCloned(f"expected {path} on the machine and GPUs it was made on, found others")
    mark, seen = FenceMark(meta["ledger_id"], meta["generation"]), fence.read()
    if mark.ledger_id != seen.ledger_id:
        raise LedgerRolledBack(f"expected {path} to be the ledger of its fence, found another one")
    if mark.generation not in {seen.generation, seen.generation + 1}:
        raise LedgerRolledBack(
            f"expected {path} at generation {seen.generation}, found {mark.generation}"
        )
    if mark != seen:
        fence.write(mark)
    return mark


_SIDE_FILES: Final = ("", "-wal", "-shm")
_Row = tuple[Any, ...]


@dataclass(slots=True)
class Salvage:
    """What the old files of a ledger tell of these hosts.

    clock_s     latest time of a file that passes its checks; 0 without one
    signed_s    latest signed time of such a file
    newest_s    latest end of a spent window, and latest clock of a damaged file
    counters    last epoch counter per host
    entries     rows of table `entries`; the same window in two files is one
    """

    clock_s: int = 0
    signed_s: int = 0
    newest_s: int = 0
    counters: dict[bytes, int] = field(default_factory=dict)
    entries: dict[tuple[bytes, str, int], _Row] = field(default_factory=dict)
    epochs: set[_Row] = field(default_factory=set)
    series: dict[str, KnownSeries] = field(default_factory=dict)


def read_lost(path: Path, hosts: Iterable[bytes], believe_until_s: int) -> Salvage:
    """Read a ledger and its copies set aside. A single host has spent what earlier ones did, too.
    believe_until_s   a damaged file's times count up to it: garbage must not silence a host
    """
    found, mine = Salvage(), frozenset(hosts)
    copies = sorted(path.parent.glob(f"{path.name}.lost-*"))
    for file in (path, *(copy for copy in copies if not copy.name.endswith(_SIDE_FILES[1:]))):
        if not file.exists():
            continue
        try:
            db = connect(file, create=False)
        except (LedgerRefused, OSError):
            _read_damaged(file, found, believe_until_s)
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
    signed = db.execute("SELECT max(value) FROM meta WHERE name = 'signed_s'").fetchone()[0]
    found.signed_s = max(found.signed_s, signed or 0)
    for host, counter in db.execute("SELECT host, epoch_ctr FROM hosts"):
        found.counters[host] = max(counter, found.counters.get(host, 0))
    (alone,) = hosts if len(hosts) == 1 else (None,)
    for row in _rows(db, "entries"):
        host = row[0] if row[0] in hosts else alone
        if host is not None:
            found.entries.setdefault((host, *row[1:3]), (host, *row[1:]))
    found.epochs |= {row for row in _rows(db, "epochs") if row[0] in hosts}
    for key, series in known_series(db).items():
        if series.version >= found.series.get(key, series).version:
            found.series[key] = series


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


@dataclass(frozen=True, slots=True)
class Identity:
    """A host id and what binds its key to the machine (`host_binding`)."""

    host: bytes
    binding: bytes = field(repr=False)


def carry_over(path: Path, fence_path: Path, old: Identity, new: Identity, now_s: int) -> bool:
    """Hand a sound ledger on, with entries and waiting records; the new identity counts anew.
    Returns     False when an earlier call did it
    Raises      LedgerRefused: nothing is carried over, and nothing changed
    """
    with (
        contextlib.closing(Fence.open(fence_path)) as fence,
        contextlib.closing(connect(path, create=False)) as db,
        translated(),
    ):
        hosts = [row[0] for row in db.execute("SELECT host FROM hosts")]
        if new.host in hosts:
            proven_mark(db, fence, path, new.binding)
            return False
        mark = proven_mark(db, fence, path, old.binding)
        if hosts != [old.host]:
            raise LedgerOfOthers(
                f"expected {path} to be of host {old.host.hex()} alone, found {len(hosts)} hosts, "
                f"first {hosts[0].hex() if hosts else 'none'}"
            )
        signed = db.execute("SELECT value FROM meta WHERE name = 'signed_s'").fetchone()
        if signed is not None and now_s < signed[0]:
            raise ClockSetBack(f"expected a clock at {signed[0]} s or later, got {now_s} s")
        after = FenceMark(mark.ledger_id, mark.generation + 1)
        with transaction(db):
            db.execute("UPDATE entries SET host = ? WHERE host = ?", (new.host, old.host))
            # What rosters said of the old one is read anew.
            for table in ("epochs", "rosters", "hosts"):
                db.execute(f"DELETE FROM {table}")  # noqa: S608
            db.execute("INSERT INTO hosts VALUES (?, ?)", (new.host, now_s))
            changed = {"binding": new.binding, "generation": after.generation}
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", changed.items())
        # As at every commit: the file first, so that a crash leaves it one ahead of its fence.
        fence.write(after)
        return True
