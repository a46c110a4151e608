"""Spark as the Leader's reader: it merges names of hosts, and asks for sums of those that count.

Vectors stay with Spark until the Helper has said which hosts count. A driver that falls is followed
by another, which gathers from the log what the closed batches name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.leader.held_windows import ClosedBatch, OpenWindow, Sum, reports_of, words_of
from aggregator.leader.intake import ReportReader
from aggregator.leader.leader import Leader
from aggregator.party.health import HealthMetric
from aggregator.protocol.epochs import AdmittedEpoch, KnownEpoch
from aggregator.protocol.interfaces import HOST_ID_BYTES, BatchKey, RosterSeen, TaskSeen
from transport.interface import Record
from wire.batch import ENTRY
from wire.rejection import Reason
from wire.topics import EPOCHS

from . import messages
from .messages import NAME_BYTES, Command, PartitionSum

SILENT_S: Final = 2.0
"""The driver speaks twenty times a second; one that is silent so long may have reports unread."""

MEASURES: Final = (
    HealthMetric(
        "partitions_unread",
        "partitions_unread",
        "partitions of the report topic that nobody reads, or one that is silent",
    ),
)


class DriverPort(Protocol):
    """The driver's process, which is followed by another when it falls."""

    def said(self) -> Sequence[bytes | None]:
        """What it has said since the last call; None: another has begun, and knows nothing."""

    def tell(self, commands: Sequence[Command]) -> None:
        """Have it told, in this order."""

    def refuse(self, reason: str) -> None:
        """End one whose words cannot be; says why."""

    def close(self) -> None:
        """End it for good."""


@dataclass(slots=True)
class _SumsDue:
    """Sums that a closed window waits for.

    accepted    bool[n], the hosts of its batch that count
    hosts       partition -> those that count
    come        partition -> words[d], the sum of these
    """

    accepted: NDArray[np.bool_]
    hosts: Mapping[int, set[bytes]]
    come: dict[int, Sum] = field(default_factory=dict)


class SparkReader(ReportReader):
    """In the Leader's process; no clock, pipe or process inside."""

    topics: Sequence[str] = (EPOCHS,)
    measures: Sequence[HealthMetric] = MEASURES

    def __init__(self, leader: Leader, driver: DriverPort) -> None:
        super().__init__(leader.intake)
        self._leader, self._driver = leader, driver
        self._commands: list[Command] = []
        self._signed: list[TaskSeen | RosterSeen] = []
        self._over: dict[BatchKey, int] = {}
        self._wanted: set[bytes] = set()
        self._refusals: dict[BatchKey, Counter[str]] = {}
        self._due: dict[BatchKey, _SumsDue] = {}
        self._last_update_s: float | None = None
        self._lag: int | None = None
        self._partitions = 1

    # What the Leader says

    def take(self, records: Sequence[Record], now_s: float) -> None:
        """Do nothing: the driver reads the reports."""

    def learn(self, signed: TaskSeen | RosterSeen) -> None:
        if all(signed.signed_bytes != before.signed_bytes for before in self._signed):
            self._signed.append(signed)
            self._commands.append(signed)

    def epoch(self, admitted: AdmittedEpoch) -> None:
        """Give an epoch where reports wait for it; tell of one that died."""
        known = admitted.known
        name = known.host_id + known.epoch_id
        if name in self._wanted or known.dead:
            self._wanted.discard(name)
            self._give_epoch(known)

    def restored(self) -> None:
        self._over = self._leader.chains.settled | self._over

    def closed(self, key: BatchKey) -> None:
        self._refusals.setdefault(key, Counter())
        self._commands.append(messages.Closed(key))

    def ended(self, key: BatchKey, until_s: int) -> None:
        self._over[key] = until_s
        self._due.pop(key, None)
        self._refusals.pop(key, None)
        self._commands.append(messages.WindowEnded(key, until_s))

    def sum_of(self, closed: ClosedBatch, accepted: NDArray[np.bool_]) -> Sum | None:
        """Ask each partition for its part; give the whole once all of them have come."""
        due = self._due.get(closed.key)
        if due is None or not np.array_equal(due.accepted, accepted):
            due = self._due[closed.key] = _SumsDue(accepted, _by_partition(closed, accepted))
            self._ask(closed.key, due)
        if due.come.keys() != due.hosts.keys():
            return None
        total, *others = due.come.values()
        for part in others:
            total = total + part
        return total

    def lag(self, own: int | None, now_s: float) -> int | None:
        """Records left to read by the loop and the driver; 1 where nobody knows."""
        lag = 1 if self._is_silent(now_s) else self._lag
        return None if own is None or lag is None else own + lag

    def status(self, now_s: float) -> Mapping[str, object]:
        return {"partitions_unread": self._partitions if self._is_silent(now_s) else 0}

    def close(self) -> None:
        self._driver.close()

    def _is_silent(self, now_s: float) -> bool:
        return self._last_update_s is None or abs(now_s - self._last_update_s) > SILENT_S

    # The driver

    def turn(self, now_s: float) -> None:
        began = False
        for raw in self._driver.said():
            if raw is None:
                self._begin()
                began = True
                continue
            try:
                self._take(messages.decode_update(raw), now_s)
            except ValueError as error:
                self._driver.refuse(str(error))
                break
        self._over = {key: until for key, until in self._over.items() if until > now_s}
        commands, self._commands = self._commands, []
        if commands or began:  # the first time, all that there was before
            self._driver.tell(commands)

    def _begin(self) -> None:
        """Forget what was named: another driver reads from the commit, and learns everything."""
        self._last_update_s = None
        self._wanted.clear()
        for key, window in self._leader.open_windows.items():
            self._leader.admitted -= window.unname()
            counted = self._refusals.get(key, Counter())
            window.rejections = dict(Counter(window.rejections) - counted)
        self._refusals.clear()
        closed = self._leader.chains.closed
        self._commands = [
            *self._signed,
            *(messages.WindowEnded(key, until_s) for key, until_s in self._over.items()),
            *(messages.Rebuild(key, reports_of(window.batch)) for key, window in closed.items()),
        ]
        for key, due in self._due.items():
            self._ask(key, due)

    def _ask(self, key: BatchKey, due: _SumsDue) -> None:
        self._commands += [
            messages.SumWanted(key, partition, frozenset(hosts))
            for partition, hosts in due.hosts.items()
            if partition not in due.come
        ]

    def _take(self, update: messages.ReaderUpdate, now_s: float) -> None:
        self._last_update_s, self._lag = now_s, update.lag
        self._partitions = update.partitions or self._partitions
        self._leader.note_appended(update.appended_s, now_s)
        for named in update.named:
            self._take_names(named)
        self._leader.rejected.update(update.rejected)
        for refusals in update.refusals:
            self._take_refusals(refusals.key, refusals.reasons)
        self._wanted.difference_update(update.dropped)
        for name in update.wanted:  # one that was dropped before may be wanted anew
            known = self._leader.book.find(name[:HOST_ID_BYTES], name[HOST_ID_BYTES:])
            if known is None or not self._give_epoch(known):
                self._wanted.add(name)
                self._commands.append(messages.EpochUnknown(name))
        for part in update.sums:
            self._take_sum(part)

    def _give_epoch(self, known: KnownEpoch) -> bool:
        if known.key is None and not known.dead:
            return False
        key = None if known.dead else known.key
        self._commands.append(replace(known, key=key, helper_keys={}, box_keys={}))
        return True

    def _take_names(self, named: messages.NamedHosts) -> None:
        leader, key = self._leader, named.key
        known = leader.directory.tasks.get(key.task_id)
        if known is None:
            return
        if leader.is_settled(key):
            late = Reason.WINDOW_RELEASED if named.late_s is None else Reason.WINDOW_LATE
            leader.rejected[late.value] += len(named.entries) // ENTRY.itemsize
            return
        counts = key in self._refusals or not leader.is_closed(key)
        window = leader.begin_window(key, known)
        roster = leader.directory.roster_at(key.window)
        fleet = 0 if roster is None else len(roster)
        for entry in named.rows:
            refusal = _name(window, named.partition, entry)
            if refusal is None:
                leader.count_admitted(entry[:HOST_ID_BYTES], fleet, named.late_s)
            elif refusal:
                leader.rejected[refusal] += 1
                if counts:
                    window.reject(refusal)

    def _take_refusals(self, key: BatchKey, reasons: Mapping[str, int]) -> None:
        """Count what a window lost; a driver begun after it closed counts it a second time."""
        window = self._leader.find_window(key)
        closed_before = self._leader.is_closed(key) and key not in self._refusals
        if window is None or window.resumed or closed_before:
            return
        self._refusals.setdefault(key, Counter()).update(reasons)
        window.rejections = dict(Counter(window.rejections) + Counter(reasons))

    def _take_sum(self, part: PartitionSum) -> None:
        due, closed = self._due.get(part.key), self._leader.chains.closed.get(part.key)
        if due is None or closed is None or part.partition in due.come:
            return
        hosts, scheme = due.hosts.get(part.partition), closed.known.task.scheme
        wanted = len(hosts or ()), closed.known.d * scheme.word_bytes
        if not hosts or (part.hosts, len(part.vector)) != wanted:
            raise ValueError(f"sum: expected {wanted}, got {(part.hosts, len(part.vector))}")
        due.come[part.partition] = words_of(part.vector, scheme)


def _name(window: OpenWindow, partition: int, entry: bytes) -> str | None:
    """Put a host into a window; else the reason why not, or nothing where it is known already."""
    host, report = entry[:HOST_ID_BYTES], entry[NAME_BYTES : NAME_BYTES + HOST_ID_BYTES]
    before = window.entries.get(host)
    if before is not None:
        if before == entry and window.places[host][0] == partition:
            return ""  # by a driver that gathers a closed window again
        same = before[NAME_BYTES : NAME_BYTES + HOST_ID_BYTES] == report
        return (Reason.DUPLICATE if same else Reason.SECOND_REPORT).value
    if window.expected is not None and window.expected.get(host) != report:
        return Reason.WINDOW_LATE.value
    window.name(host, entry, partition)
    return None


def _by_partition(closed: ClosedBatch, accepted: NDArray[np.bool_]) -> Mapping[int, set[bytes]]:
    hosts: dict[int, set[bytes]] = {}
    for host in closed.batch.entries["host_id"][accepted].tolist():
        hosts.setdefault(closed.window.places[host][0], set()).add(host)
    return hosts
