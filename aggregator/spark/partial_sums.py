"""What one pass over records of a partition makes of them: the hosts it admits, and their sum.

What was admitted before is told to it, so that a host is left out before anything is added.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from aggregator.leader.admission import Heading, Parked
from aggregator.leader.held_windows import OpenWindow
from aggregator.leader.intake import Intake
from aggregator.party.config import Quotas
from aggregator.protocol.directory import Directory, KnownTask, PinnedParties
from aggregator.protocol.epochs import KnownEpoch, KnownEpochs
from aggregator.protocol.interfaces import HOST_ID_BYTES, BatchKey, RosterSeen, TaskSeen
from transport.interface import Record
from wire.rejection import ReportRejected

from . import messages
from .messages import NAME_BYTES, Command

RECORD_BYTES: Final = 144
"""The dedupe record of a host: the first 128 B of its report and its box's tag."""

KnownHosts = Mapping[BatchKey, bytes]
"""Window -> RECORD_BYTES of each host that is in a sum already."""


@dataclass(frozen=True, slots=True)
class PartialSum(messages.NamedHosts):
    """Hosts of one window that one pass admitted, and the sum of their vectors.

    late_s      when they were received, if any came after the window's lateness
    first       offset of the first report that named the window
    until_s     the last second at which a report of the window is of use
    received_s  when the pass began, seconds
    records     RECORD_BYTES for each host
    offsets     where the report of each lies
    reasons     reports that named the window and were refused, by reason
    vector      words of 4 B (8 B in `local`); empty where no host was admitted
    """

    first: int
    until_s: int
    received_s: float
    records: bytes
    offsets: tuple[int, ...]
    reasons: Mapping[str, int]
    vector: bytes = field(repr=False)

    @property
    def hosts(self) -> dict[bytes, bytes]:
        return by_host(self.records)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a pass over a range of one partition made of it.

    after       the offset behind the last record
    appended_s  when its records were appended, seconds; of a second, one
    rejected    reports refused, by reason, whether or not a window is known
    """

    partition: int
    after: int
    sums: tuple[PartialSum, ...] = ()
    parked: tuple[Parked, ...] = ()
    appended_s: tuple[float, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)


class EpochKeyCache:
    """The epochs that the Leader gave, with their keys, and which names it was asked for.

    A name is asked for before the first report of it is taken: what the Leader knows already
    must never fill the places of parked reports. Anybody may write names, so one that has not come
    is kept for as long as a report waits for it.
    """

    def __init__(self) -> None:
        self._known = KnownEpochs()
        self._asked: set[bytes] = set()
        self._unknown: set[bytes] = set()
        self._new: list[bytes] = []
        self._to_ask: list[bytes] = []

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def find(self, host_id: bytes, epoch_id: bytes) -> KnownEpoch | None:
        return self._known.find(host_id, epoch_id)

    def need(self, name: bytes) -> None:
        """Ask for an epoch, host_id || epoch_id, unless it was given or has not come."""
        if name in self._unknown or name in self._asked or self.find(name[:16], name[16:]):
            return
        self._asked.add(name)
        self._to_ask.append(name)

    def take_questions(self) -> list[bytes]:
        names, self._to_ask = self._to_ask, []
        return names

    def put(self, epoch: KnownEpoch) -> None:
        self._known.put(epoch)
        for names in (self._asked, self._unknown):
            names.discard(epoch.host_id + epoch.epoch_id)

    def put_unknown(self, name: bytes) -> None:
        self._asked.discard(name)
        self._unknown.add(name)
        self._new.append(name)

    def drop_new(self, waits: Callable[[bytes], bool]) -> list[bytes]:
        """Forget what has not come, of the names that were answered since the last call.

        waits       whether a report waits for a name
        Returns     the names that are no longer waited for
        """
        new, self._new = self._new, []
        dropped = [name for name in new if name in self._unknown and not waits(name)]
        self._unknown.difference_update(dropped)
        return dropped

    def forget(self, ended_s: float, now_s: float, needed: set[bytes]) -> list[bytes]:
        """Forget the epochs that ended by `ended_s`, and unknown ones that no report needs.

        Returns     as `drop_new`
        """
        self._known.forget(ended_s, now_s)
        dropped = self._unknown - needed
        self._unknown -= dropped
        return sorted(dropped)


@dataclass(slots=True)
class _Notes:
    """Beside a window: what of it is new in this pass."""

    until_s: int
    offsets: list[int] = field(default_factory=list)
    late_s: float | None = None


class Gatherer:
    """Knows what the Leader said; everything else is of one pass."""

    def __init__(self, parties: PinnedParties) -> None:
        self._directory, self._epochs = Directory(parties), KnownEpochs()
        self._settled: set[BatchKey] = set()
        self._closed: set[BatchKey] = set()
        self._rebuilt: dict[BatchKey, Mapping[bytes, bytes]] = {}
        self._rejected: Counter[str] = Counter()
        # A pass knows what came before of each host, and not how often: it counts no excess.
        unbounded = Quotas(retries=sys.maxsize)
        self._intake = Intake(self._directory, self._epochs, self, self._rejected, quotas=unbounded)
        self._only: dict[bytes, bytes] | None = None
        self._before: KnownHosts = {}
        self._partition = 0
        self._windows: dict[BatchKey, OpenWindow] = {}
        self._notes: dict[BatchKey, _Notes] = {}

    @property
    def directory(self) -> Directory:
        return self._directory

    # What the Leader said

    def handle(self, commands: Iterable[Command], now_s: float) -> dict[str, int]:
        refused: Counter[str] = Counter()
        for command in commands:
            try:
                self._handle(command, now_s)
            except ReportRejected as refusal:
                refused[refusal.reason.value] += 1
        return refused

    def _handle(self, command: Command, now_s: float) -> None:
        match command:
            case TaskSeen():
                self._directory.add_task(command.signed_bytes, now_s, at_start=True)
                self._intake.tasks_changed()
            case RosterSeen():
                self._directory.add_roster(command.signed_bytes)
                self._intake.tasks_changed()
            case KnownEpoch():
                self._epochs.put(command)
            case messages.Rebuild():
                self._rebuilt[command.key] = command.reports
            case messages.Closed():
                self._closed.add(command.key)
            case messages.WindowEnded():
                self._settled.add(command.key)
            case _:
                pass

    # One pass

    def gather(
        self,
        partition: int,
        records: Iterable[Record],
        before: KnownHosts,
        now_s: float,
        only: dict[bytes, bytes] | None = None,
    ) -> Gathered:
        """Take records of one partition, in log order.

        before      hosts that are in a sum of this partition already
        only        host_id -> report_id: take just these, whatever has become of their window
        Raises      ValueError for a record of another partition, or out of order
        """
        self._begin(partition, before, only)
        after, appended_s = 0, list[float]()

        def in_order() -> Iterator[Record]:
            nonlocal after
            for record in records:
                if record.partition != partition or record.offset < after:
                    raise ValueError(
                        f"record: expected partition {partition} from {after} on, "
                        f"got {record.partition} at {record.offset}"
                    )
                after = record.offset + 1
                if not appended_s or int(record.appended_s) != int(appended_s[-1]):
                    appended_s.append(record.appended_s)
                yield record

        self._intake.take(in_order(), now_s)
        parked = tuple(chain.from_iterable(self._intake.parked.values()))
        self._intake.forget_parked()
        sums = tuple(self._sum(key, now_s) for key in self._windows)
        return Gathered(partition, after, sums, parked, tuple(appended_s), dict(self._rejected))

    def _begin(self, partition: int, before: KnownHosts, only: dict[bytes, bytes] | None) -> None:
        self._partition, self._before, self._only = partition, before, only
        self._windows.clear()
        self._notes.clear()
        self._rejected.clear()

    def _sum(self, key: BatchKey, now_s: float) -> PartialSum:
        window, notes = self._windows[key], self._notes[key]
        hosts = list(window.entries)
        return PartialSum(
            key,
            self._partition,
            b"".join(window.entries.values()),
            notes.late_s,
            min(window.first_seen.values()),
            notes.until_s,
            now_s,
            b"".join(window.hosts[host] for host in hosts),
            tuple(notes.offsets),
            dict(window.rejections),
            window.sum_of(hosts).tobytes() if hosts else b"",
        )

    # The windows that reports enter: `intake.ReportWindows`

    def is_settled(self, key: BatchKey) -> bool:
        return self._only is None and key in self._settled

    def is_closed(self, key: BatchKey) -> bool:  # noqa: ARG002
        """Whether a batch names what a window takes: in a pass over what it named."""
        return self._only is not None

    def find_window(self, key: BatchKey) -> OpenWindow | None:
        return self._windows.get(key)

    def begin_window(self, key: BatchKey, known: KnownTask) -> OpenWindow:
        """The same, begun when it is new, with the hosts that were admitted before."""
        window = self._windows.get(key)
        if window is None:
            window = OpenWindow(known.d, known.task.scheme)
            window.hosts.update(by_host(self._before.get(key, b"")))
            if self._only is not None:
                window.expected, window.resumed = self._only, True
            elif key in self._rebuilt:
                window.expected, window.resumed = self._rebuilt[key], True
            elif key in self._closed:
                window.expected = {}
            self._windows[key] = window
            self._notes[key] = _Notes(known.over_s(key.window))
        return window

    def reserve_memory(self, heading: Heading, received_s: float) -> None:
        """Do nothing: a pass keeps the vectors of its own records, and gives their sums away."""

    def note_admitted(self, heading: Heading) -> None:
        notes = self._notes[heading.key]
        notes.offsets += heading.offsets
        if heading.admitted and heading.late_s is not None:
            notes.late_s = heading.late_s


def by_host(records: bytes) -> dict[bytes, bytes]:
    """host_id -> dedupe record: a report begins with its host."""
    rows = (records[at : at + RECORD_BYTES] for at in range(0, len(records), RECORD_BYTES))
    return {row[:HOST_ID_BYTES]: row for row in rows}


def report_id(entry: bytes) -> bytes:
    """Of a batch entry: it stands behind host_id and epoch_id."""
    return entry[NAME_BYTES : NAME_BYTES + HOST_ID_BYTES]
