"""The embedded log's file, which users of a group may share, and the members of its groups.

Every change of membership is one write transaction of whichever member notices it first: there is
no coordinator to lose. A member is alive while its lease lasts and its process lives.
"""

from __future__ import annotations

import fcntl
import grp
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transport.files import sqlite_file
from transport.files.private_files import set_folder
from transport.files.sqlite_file import OtherSchema, refuse_other_schema, schema_of, transaction
from transport.interface import TransportUnavailable
from transport.process.supervision import boot_s

Slot = tuple[int, int]  # a topic's number and a partition


def process_is_gone(pid: int) -> bool:
    """True where no such process runs, or only its zombie does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False  # hidden by hidepid: alive, since kill found it
    return stat[stat.rfind(b")") + 2 : stat.rfind(b")") + 3] in {b"Z", b"X"}


def share_out(
    slots: Sequence[Slot], holders: dict[Slot, str], subscribed: dict[str, frozenset[int]]
) -> dict[Slot, str]:
    """Give each partition that has a subscriber a holder, evenly; who holds one keeps its share.

    subscribed  live members, each with the numbers of its topics
    """
    floor, spare = divmod(len(slots), len(subscribed)) if subscribed else (0, 0)
    load = dict.fromkeys(sorted(subscribed), 0)
    result: dict[Slot, str] = {}
    for slot in sorted(slots):
        member = holders.get(slot, "")
        if slot[0] not in subscribed.get(member, ()):
            continue
        if load[member] < floor or (load[member] == floor and spare > 0):
            spare -= load[member] == floor
            load[member] += 1
            result[slot] = member
    for slot in sorted(set(slots) - result.keys()):
        able = [member for member in load if slot[0] in subscribed[member]]
        if able:
            chosen = min(able, key=lambda member: (load[member], member))
            load[chosen] += 1
            result[slot] = chosen
    return result


def _topics_of(text: object) -> frozenset[int] | None:
    """The topic numbers of a member, None for what no member writes."""
    try:
        numbers = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return None
    return frozenset(numbers)


_MEMBERS = (
    "SELECT member, expires_s, boot, pid_space, pid, topic_ids FROM members WHERE group_name = ?"
)


class Membership:
    """One member's seat in a group; its methods run inside the caller's write transaction."""

    def __init__(self, group: str, topic_ids: Iterable[int], lease_s: float, member: str) -> None:
        self.group = group
        self.member = member
        self.lease_s = lease_s
        self.renewal_s = lease_s / 3
        self.alone = False
        """Nobody else was in the group at the last look."""
        self._topic_ids = sorted(topic_ids)
        # Of the clock that leases are counted on, and of process ids: those of others say nothing.
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self._space = Path("/proc/self/ns/pid").stat().st_ino

    def renew(self, connection: sqlite3.Connection) -> None:
        """Join or stay for another lease, remove the dead, divide the partitions anew."""
        now = boot_s()
        connection.execute(
            "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(self.group, self.member, json.dumps(self._topic_ids), now + self.lease_s),
                *(self._boot, self._space, os.getpid()),
            ),
        )
        self._divide(connection, self._remove_dead(connection, now))

    def leave(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM members WHERE group_name = ? AND member = ?", (self.group, self.member)
        )
        self._divide(connection, self._remove_dead(connection, boot_s()))

    def was_removed(self, connection: sqlite3.Connection) -> bool:
        """True once another member found this one's lease over."""
        found = connection.execute(f"{_MEMBERS} AND member = ?", (self.group, self.member))
        return found.fetchone() is None

    def somebody_died(self, connection: sqlite3.Connection) -> bool:
        """Cheap look without a write: is another member's lease over or its process gone?"""
        now = boot_s()
        found = connection.execute(f"{_MEMBERS} AND member != ?", (self.group, self.member))
        others = found.fetchall()
        self.alone = not others
        return any(self._is_dead(row, now) for row in others)

    def _is_dead(self, row: tuple[object, ...], now: float) -> bool:
        _, expires_s, boot, space, pid, _ = row
        # Another user of the group may have written anything: what no member writes is no member.
        if not isinstance(expires_s, float) or not isinstance(pid, int) or not 0 < pid < 1 << 31:
            return True
        if boot != self._boot or expires_s <= now:
            return True
        return space == self._space and process_is_gone(pid)

    def _remove_dead(self, connection: sqlite3.Connection, now: float) -> dict[str, frozenset[int]]:
        rows = connection.execute(_MEMBERS, (self.group,)).fetchall()
        live: dict[str, frozenset[int]] = {}
        for row in rows:
            topics = _topics_of(row[5])
            if topics is None or self._is_dead(row, now):
                connection.execute(
                    "DELETE FROM members WHERE group_name = ? AND member = ?", (self.group, row[0])
                )
            else:
                live[row[0]] = topics
        return live

    def _divide(self, connection: sqlite3.Connection, live: dict[str, frozenset[int]]) -> None:
        wanted = set().union(*live.values()) if live else set()
        slots = [
            (topic_id, partition)
            for topic_id, partitions in connection.execute(
                "SELECT topic_id, partitions FROM topics"
            )
            if topic_id in wanted
            for partition in range(partitions)
        ]
        rows = connection.execute(
            "SELECT topic_id, partition, member FROM assignments WHERE group_name = ?",
            (self.group,),
        ).fetchall()
        holders = {(topic_id, partition): member for topic_id, partition, member in rows}
        fresh = share_out(slots, holders, live)
        if fresh != holders:
            self._store(connection, fresh)

    def _store(self, connection: sqlite3.Connection, fresh: dict[Slot, str]) -> None:
        connection.execute("DELETE FROM assignments WHERE group_name = ?", (self.group,))
        connection.executemany(
            "INSERT INTO assignments VALUES (?, ?, ?, ?)",
            [(self.group, *slot, member) for slot, member in fresh.items()],
        )
        connection.execute(
            "INSERT INTO generations VALUES (?, 1)"
            " ON CONFLICT (group_name) DO UPDATE SET generation = generation + 1",
            (self.group,),
        )

    def generation(self, connection: sqlite3.Connection) -> int:
        """Rises with every new division of the partitions."""
        row = connection.execute(
            "SELECT generation FROM generations WHERE group_name = ?", (self.group,)
        ).fetchone()
        return row[0] if row else 0

    def held(self, connection: sqlite3.Connection) -> set[Slot]:
        rows = connection.execute(
            "SELECT topic_id, partition FROM assignments WHERE group_name = ? AND member = ?",
            (self.group, self.member),
        )
        return {(topic_id, partition) for topic_id, partition in rows}


FILE_NAME = "log.sqlite"
SCHEMA_VERSION = 1

# `ends` survives a purge, so that offsets never start again. A rowid table keeps values of several
# KiB out of the index that reads follow. STRICT: another writer cannot hand us text for bytes.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    topic_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL)
    STRICT;
CREATE TABLE IF NOT EXISTS ends (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    topic_id INTEGER NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    appended_s REAL NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS records_by_offset ON records (topic_id, partition, "offset");
CREATE TABLE IF NOT EXISTS commits (
    group_name TEXT NOT NULL, topic_id INTEGER NOT NULL, partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (group_name, topic_id, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    group_name TEXT NOT NULL, member TEXT NOT NULL, topic_ids TEXT NOT NULL,
    expires_s REAL NOT NULL, boot TEXT NOT NULL, pid_space INTEGER NOT NULL, pid INTEGER NOT NULL,
    PRIMARY KEY (group_name, member)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS assignments (
    group_name TEXT NOT NULL, topic_id INTEGER NOT NULL, partition INTEGER NOT NULL,
    member TEXT NOT NULL, PRIMARY KEY (group_name, topic_id, partition)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS generations (
    group_name TEXT PRIMARY KEY, generation INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))))
    STRICT;
INSERT OR IGNORE INTO identity (one) VALUES (1);
"""


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """Turn SQLite's and the disk's failures into `TransportUnavailable`."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise  # our own bug, not the world's failure
    except (sqlite3.DatabaseError, OSError, OtherSchema) as error:
        raise TransportUnavailable(f"embedded log {path}: {error}") from error


def prepare_folder(folder: Path, group: str | None) -> Path:
    """Create the folder and an empty database, for a group of users if named; give its path."""
    path = folder / FILE_NAME
    if group is not None and not path.exists():
        _expect_member(group)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        set_folder(folder, 0o2770 if group is not None else 0o700, group=group)
    mode = 0o660 if group is not None else 0o600
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, mode)
    except FileExistsError:
        return path
    try:
        if group is not None:
            os.fchown(handle, -1, grp.getgrnam(group).gr_gid)
        os.fchmod(handle, mode)  # whatever the umask; SQLite copies it to -wal and -shm
    finally:
        os.close(handle)
    return path


def _expect_member(group: str) -> None:
    """Refuse to make for a group what its members could not open. Raises PermissionError."""
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        raise PermissionError(f"expected the group {group} that shares it, found none") from None
    if os.geteuid() != 0 and number not in {os.getegid(), *os.getgroups()}:
        raise PermissionError(
            f"expected a user of the group {group} that shares it; "
            f"root adds one by usermod --append --groups {group} USER"
        )


def connect(path: Path, busy_timeout_s: float, max_value_bytes: int) -> sqlite3.Connection:
    """Open one connection: manual transactions, WAL, an fsync per commit, bounded values."""
    connection = sqlite_file.connect(path, busy_timeout_s)
    try:
        # The file may have been written by another user of the group: bound what it makes us load.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_value_bytes + (1 << 16))
        connection.execute("PRAGMA trusted_schema=OFF")
        # What is purged is overwritten: sealed vectors are not to be found in free pages.
        connection.execute("PRAGMA secure_delete=ON").fetchone()
        _initialise(connection, path.parent)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        connection.execute("PRAGMA journal_size_limit=67108864")
    except BaseException:
        connection.close()
        raise
    return connection


def _initialise(connection: sqlite3.Connection, folder: Path) -> None:
    if _has_schema(connection):
        return
    # Switching to WAL does not wait for other connections, so the first ones take turns.
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not _has_schema(connection):
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.execute("PRAGMA journal_mode=WAL")
            with transaction(connection):
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    finally:
        os.close(handle)


def _has_schema(connection: sqlite3.Connection) -> bool:
    refuse_other_schema(FILE_NAME, connection, SCHEMA_VERSION, unmarked=SCHEMA_VERSION)
    # Files of earlier programs have no identity yet; those programs take one for nothing.
    return schema_of(connection) == SCHEMA_VERSION and bool(
        connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'identity'").fetchone()
    )


def identity_of(connection: sqlite3.Connection) -> str:
    """Which log it is: each file is given its own when it is made."""
    row = connection.execute("SELECT id FROM identity").fetchone()
    return "" if row is None else str(row[0])


Place = tuple[int, int]


def place_of(path: Path) -> Place | None:
    """Which file lies there now; None where none does."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
