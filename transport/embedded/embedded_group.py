"""Membership of a consumer group in the embedded log: who is alive, who holds which partition.

Every change of membership is one write transaction of whichever member notices it first, so there
is no coordinator to lose. A member is alive while its lease lasts and, as all members are processes
of one machine, while its process lives: a killed consumer is replaced at once.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

Slot = tuple[int, int]
"""A topic's number and a partition."""


def boot_id() -> str:
    """Differs after every boot, as the clock that leases are counted on starts again."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def boot_seconds() -> float:
    """Seconds since boot: the same for all processes, untouched by a change of the date."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def pid_space() -> int:
    """The process-id namespace: a pid from another container says nothing here."""
    return Path("/proc/self/ns/pid").stat().st_ino


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
    """Divide partitions evenly; a member keeps what it holds as far as its share goes.

    slots       all partitions that some member reads
    holders     who holds what now
    subscribed  live members, each with the numbers of its topics
    Returns     the new holder of every slot that has a subscriber
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


class Membership:
    """One member's seat in a group; its methods run inside the caller's write transaction."""

    def __init__(self, group: str, topic_ids: Iterable[int], lease_s: float) -> None:
        self.group = group
        self.member = os.urandom(12).hex()
        self.lease_s = lease_s
        self.renewal_s = lease_s / 3
        self.alone = False
        """Nobody else was in the group at the last look."""
        self._topic_ids = sorted(topic_ids)
        self._boot = boot_id()
        self._space = pid_space()

    def renew(self, connection: sqlite3.Connection) -> None:
        """Join or stay for another lease, remove the dead, divide the partitions anew."""
        now = boot_seconds()
        connection.execute(
            "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                self.group,
                self.member,
                json.dumps(self._topic_ids),
                now + self.lease_s,
                self._boot,
                self._space,
                os.getpid(),
            ),
        )
        self._divide(connection, self._remove_dead(connection, now))

    def leave(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM members WHERE group_name = ? AND member = ?", (self.group, self.member)
        )
        self._divide(connection, self._remove_dead(connection, boot_seconds()))

    def was_removed(self, connection: sqlite3.Connection) -> bool:
        """True once another member found this one's lease over."""
        row = connection.execute(
            "SELECT 1 FROM members WHERE group_name = ? AND member = ?", (self.group, self.member)
        ).fetchone()
        return row is None

    def somebody_died(self, connection: sqlite3.Connection) -> bool:
        """Cheap look without a write: is another member's lease over or its process gone?"""
        now = boot_seconds()
        rows = connection.execute(
            "SELECT member, expires_s, boot, pid_space, pid FROM members WHERE group_name = ?",
            (self.group,),
        ).fetchall()
        others = [row for row in rows if row[0] != self.member]
        self.alone = not others
        return any(self._is_dead(row, now) for row in others)

    def _is_dead(self, row: tuple[object, ...], now: float) -> bool:
        _, expires_s, boot, space, pid = row
        # Another user of the group may have written anything: what no member writes is no member.
        if not isinstance(expires_s, float) or not isinstance(pid, int) or not 0 < pid < 1 << 31:
            return True
        if boot != self._boot or expires_s <= now:
            return True
        return space == self._space and process_is_gone(pid)

    def _remove_dead(self, connection: sqlite3.Connection, now: float) -> dict[str, frozenset[int]]:
        rows = connection.execute(
            "SELECT member, expires_s, boot, pid_space, pid, topic_ids FROM members"
            " WHERE group_name = ?",
            (self.group,),
        ).fetchall()
        live: dict[str, frozenset[int]] = {}
        for row in rows:
            topics = _topics_of(row[5])
            if topics is None or self._is_dead(row[:5], now):
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
        """The partitions that this member holds now."""
        rows = connection.execute(
            "SELECT topic_id, partition FROM assignments WHERE group_name = ? AND member = ?",
            (self.group, self.member),
        )
        return {(topic_id, partition) for topic_id, partition in rows}
