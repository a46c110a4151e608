"""A worker as a state machine: reports of its partitions in, names of hosts and sums out.

It decides nothing. The log is its record: what it holds is rebuilt from the group's commit, which
stays at the first report of the oldest window that has not ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, assert_never

from aggregator.leader.admission import Heading
from aggregator.leader.dead_letters import DeadLetters
from aggregator.leader.intake import Intake
from aggregator.leader.window_room import WindowRoom
from aggregator.leader.window_sums import OpenWindow
from aggregator.party.quotas import Quotas
from aggregator.protocol.answers import HOST_ID_BYTES, BatchKey
from aggregator.protocol.directory import Directory, KnownTask, PinnedParties
from transport.port import Record, TopicPartition
from wire.bounds import Scheme
from wire.rejection import Reason, ReportRejected
from wire.topics import REPORTS

from .claims import Claims
from .given_epochs import GivenEpochs
from .readers import PARTITIONS
from .words import (
    NAME_BYTES,
    WORD_BYTES,
    EpochUnknown,
    Frozen,
    Granted,
    NamedHosts,
    OpenedEpoch,
    Order,
    PartitionSum,
    Place,
    Rebuild,
    Refusals,
    SignedRoster,
    SignedTask,
    SumWanted,
    Superseded,
    WindowEnded,
    Word,
)

_FORGET_EVERY_S: Final = 60.0
_CORE_LENGTH_AT: Final = 3
"""Of an envelope: behind its kind and the tag of its core."""


class Worker:
    """The windows of the partitions that one member of the Leader's group holds."""

    def __init__(
        self,
        parties: PinnedParties,
        new_claim: Callable[[], bytes],
        quotas: Quotas | None = None,
    ) -> None:
        """Start with no partition.

        new_claim   draws the number of a claim, 16 B, never the same twice
        """
        self._directory, self.claims = Directory(parties), Claims(new_claim)
        self._epochs = GivenEpochs()
        self._rejected: Counter[str] = Counter()
        quotas = quotas or Quotas()
        self._room = WindowRoom(quotas.window_bytes)
        self._intake = Intake(self._directory, self._epochs, self, self._rejected, quotas=quotas)
        self._next_offset: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._windows: dict[Place, OpenWindow] = {}
        self._rebuilt: dict[Place, dict[bytes, bytes]] = {}
        self._frozen: set[BatchKey] = set()
        self._settled: dict[BatchKey, int] = {}
        self._named: dict[tuple[BatchKey, int, bool], tuple[bytearray, float | None]] = {}
        self._appended_s: list[float] = []
        self._waiting: deque[tuple[Sequence[Record], float]] = deque()
        self._dropped: list[bytes] = []
        self._sums_wanted: dict[Place, SumWanted] = {}
        self._forgot_s = 0.0

    @property
    def letters(self) -> DeadLetters:
        """What is to be written of refused reports."""
        return self._intake.letters

    @property
    def asking(self) -> bool:
        """Whether reports wait for the coordinator's answer about their epochs."""
        return bool(self._waiting)

    def divide(self, partitions: Collection[int]) -> None:
        """Take another division of the partitions: all of them are read again from the commit."""
        self.claims.divide(sorted(partitions))
        self._next_offset.clear()
        self._committed.clear()
        self._windows.clear()
        self._rebuilt.clear()
        self._named.clear()
        self._sums_wanted.clear()
        self._intake.forget_parked()
        self._waiting.clear()

    # Reports

    def hear(self, records: Sequence[Record], now_s: float) -> bool:
        """Take records in log order; False when one is from before what was read.

        Then the partition was given away and back, and nothing of them was taken. Offsets that are
        left out are no records, or ended for another reader, whose claim is in the place of ours.
        """
        after = dict(self._next_offset)
        for record in records:
            read = record.offset < after.get(record.partition, 0)
            if read or not self.claims.is_granted(record.partition):
                return False
            after[record.partition] = record.offset + 1
        self._next_offset = after
        for record in records:
            if not self._appended_s or int(record.appended_s) != int(self._appended_s[-1]):
                self._appended_s.append(record.appended_s)
            name = _epoch_name(record.value)
            if name is not None:
                self._epochs.need(name)
        self._waiting.append((records, now_s))
        self._take_waiting()
        return True

    def _take_waiting(self) -> None:
        while self._waiting and not self._epochs.waiting:
            self._intake.take(*self._waiting.popleft())
            if not self._waiting:
                self._dropped += self._epochs.drop_new(self._waits)

    def _waits(self, name: bytes) -> bool:
        """Whether a report is parked for an epoch."""
        host, epoch = name[:HOST_ID_BYTES], name[HOST_ID_BYTES:]
        return any(parked.epoch_id == epoch for parked in self._intake.parked.get(host, ()))

    # The windows that reports enter: `intake.ReportWindows`

    def is_settled(self, key: BatchKey) -> bool:
        """Whether a window is over for good."""
        return key in self._settled

    def is_frozen(self, key: BatchKey, partition: int) -> bool:
        """Whether a batch names what a window takes of a partition."""
        return key in self._frozen or (key, partition) in self._rebuilt

    def find_window(self, key: BatchKey, partition: int) -> OpenWindow | None:
        """What a partition has brought of a window."""
        return self._windows.get((key, partition))

    def begin_window(self, key: BatchKey, partition: int, known: KnownTask) -> OpenWindow:
        """The same, begun when it is new, which the coordinator is told."""
        place = key, partition
        window = self._windows.get(place)
        if window is None:
            window = OpenWindow(known.d, known.task.scheme is Scheme.LOCAL)
            if place in self._rebuilt:
                window.expected, window.resumed = self._rebuilt[place], True
            elif key in self._frozen:
                window.expected = {}
            self._windows[place] = window
            self._named.setdefault((*place, False), (bytearray(), None))
        return window

    def require_room(self, heading: Heading, partition: int, received_s: float) -> None:
        """Set room aside for all partitions' parts of a window, or refuse them all alike."""
        del partition
        key, window = heading.key, heading.window
        parts = [other for (of, _part), other in self._windows.items() if of == key]
        window.refused = any(part.refused for part in parts)
        if window.refused:
            raise ReportRejected(Reason.OVERLOAD, "a window that was begun", "a refused one")
        hosts = self._hosts_of_a_part(heading)
        if not any(part.room_bytes for part in parts):
            others = [other for (of, _part), other in self._windows.items() if of != key]
            wanted = hosts * len(self.claims.held)
            self._room.begin(window, heading.known, key.window, wanted, received_s, others)
        window.room_bytes = hosts * window.row_bytes

    def _hosts_of_a_part(self, heading: Heading) -> int:
        """Hosts of a window's cohort that a partition has reports of, on average."""
        cohort = heading.roster.hosts(heading.known.task.series)[heading.key.cohort]
        return -(-cohort // max(PARTITIONS, max(self.claims.held) + 1))

    def note_admitted(self, heading: Heading, partition: int) -> None:
        """Name hosts that are in their window now."""
        if heading.admitted:
            name = heading.key, partition, heading.late_s is not None
            entries, before_s = self._named.get(name, (bytearray(), None))
            entries += heading.admitted
            self._named[name] = entries, before_s if heading.late_s is None else heading.late_s

    # What the coordinator says

    def heed(self, orders: Iterable[Order], now_s: float) -> None:
        """Do what the coordinator says, in its order."""
        for order in orders:
            self._heed(order, now_s)
        self._take_waiting()
        if now_s - self._forgot_s >= _FORGET_EVERY_S:
            self._forget(now_s)

    def _heed(self, order: Order, now_s: float) -> None:
        match order:
            case SignedTask() | SignedRoster():
                self._learn(order, now_s)
            case OpenedEpoch():
                self._epochs.put(order)
                self._intake.unpark(order.host_id)
            case EpochUnknown():
                self._epochs.put_unknown(order.name)
            case Rebuild():
                self._rebuilt[order.key, order.partition] = order.named
            case Granted() | Superseded():
                self.claims.heed(order)
            case Frozen():
                self._freeze(order.key)
            case SumWanted():
                if self.claims.has(order.claim):
                    self._sums_wanted[order.key, order.claim.partition] = order
            case WindowEnded():
                self._settle(order)
            case _:
                assert_never(order)

    def _learn(self, order: SignedTask | SignedRoster, now_s: float) -> None:
        """Verify a task or roster; one that this worker's clock refuses is counted."""
        try:
            if isinstance(order, SignedTask):
                self._directory.add_task(order.content, now_s, at_start=True)
            else:
                self._directory.add_roster(order.content)
        except ReportRejected as refusal:
            self._rejected[refusal.reason.value] += 1
        self._intake.tasks_changed()

    def _freeze(self, key: BatchKey) -> None:
        self._intake.drop_parked(lambda parked: parked.key == key)
        self._frozen.add(key)
        for partition in self.claims.held:
            window = self._windows.get((key, partition))
            if window is not None and not window.resumed:
                window.expected = {}

    def _settle(self, order: WindowEnded) -> None:
        self._intake.drop_parked(lambda parked: parked.key == order.key)
        self._settled[order.key] = order.until_s
        self._frozen.discard(order.key)
        for partition in self.claims.held:
            place = order.key, partition
            for kept in (self._windows, self._rebuilt, self._sums_wanted):
                kept.pop(place, None)

    def _forget(self, now_s: float) -> None:
        self._forgot_s = now_s
        self._settled = {key: until for key, until in self._settled.items() if until > now_s}
        needed = {
            host + parked.epoch_id
            for host, reports in self._intake.parked.items()
            for parked in reports
        }
        ended_s = now_s - self._directory.longest_retention_s()
        self._dropped += self._epochs.forget(ended_s, now_s, needed)
        self._directory.drop_past_tasks(now_s, {key.task_id for key, _part in self._windows})
        self._intake.tasks_changed()

    # What it says

    def word(self, lag: int | None) -> Word:
        """Say what is new.

        lag         records of its partitions left to read; None while the log is away
        """
        rejected = dict(self._rejected)
        self._rejected.clear()
        named, self._named = self._named, {}
        appended_s, self._appended_s = self._appended_s, []
        dropped, self._dropped = self._dropped, []
        return Word(
            self.claims.all(),
            lag,
            appended_s,
            [
                NamedHosts(key, self.claims.of(part), bytes(entries), late_s)
                for (key, part, _late), (entries, late_s) in named.items()
            ],
            self._refusals(),
            rejected,
            self._epochs.take_questions(),
            dropped,
            self._sums(),
        )

    def _refusals(self) -> list[Refusals]:
        found = []
        for (key, partition), window in self._windows.items():
            if window.rejections:
                found.append(Refusals(key, self.claims.of(partition), window.rejections))
                window.rejections = {}
        return found

    def _sums(self) -> list[PartitionSum]:
        """The sums that are asked for, as far as every host of them was read and a word takes."""
        found, size = [], 0
        for place, wanted in list(self._sums_wanted.items()):
            window, names = self._windows.get(place), wanted.hosts
            hosts = [names[at : at + HOST_ID_BYTES] for at in range(0, len(names), HOST_ID_BYTES)]
            if size >= WORD_BYTES:
                break
            if window is not None and all(host in window.hosts for host in hosts):
                vector = window.sum_of(hosts).tobytes()
                size += len(vector)
                found.append(PartitionSum(place[0], wanted.claim, len(hosts), vector))
                del self._sums_wanted[place]
        return found

    def offsets(self) -> dict[TopicPartition, int]:
        """How far the group's commit may go: no window that has not ended needs the log again."""
        if self._waiting:
            return {}
        offsets = {(REPORTS, part): at for part, at in self._next_offset.items()}
        for window in self._windows.values():
            for slot, first in window.first_seen.items():
                offsets[slot] = min(offsets.get(slot, first), first)
        moved = {slot: at for slot, at in offsets.items() if at > self._committed.get(slot[1], -1)}
        self._committed.update({slot[1]: at for slot, at in moved.items()})
        return moved


def _epoch_name(value: bytes) -> bytes | None:
    """Host and epoch id of an enveloped report; None for what is too short to be one.

    What is no envelope gives a name that nobody knows, and is refused when it is taken.
    """
    at = _CORE_LENGTH_AT
    while at < len(value) and value[at] & 0x80:
        at += 1
    name = value[at + 1 : at + 1 + NAME_BYTES]
    return name if len(name) == NAME_BYTES else None
