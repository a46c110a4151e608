"""The Leader as the coordinator of workers: it merges names of hosts and sums, and settles.

A window freezes with the hosts that the claims which count have named by then. Their vectors stay
with the workers; when the Helper has said which hosts count, each partition's claim gives the sum
of exactly these. A claim that is lost is followed by another, which gathers from the log what the
frozen batches name: a batch never changes, whoever read its reports.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import (
    EpochsArrived,
    KeepEpochs,
    LeaderEffect,
    LeaderEvent,
    ShareCame,
    Tick,
)
from aggregator.leader.leader_windows import FrozenWindow
from aggregator.leader.unmasking import is_local, verified_share
from aggregator.leader.window_sums import OpenWindow
from aggregator.protocol.answers import HOST_ID_BYTES, BatchKey
from aggregator.protocol.party_events import RosterSeen, TaskSeen
from transport.port import Record
from wire.batch import ENTRY
from wire.rejection import Reason, ReportRejected
from wire.topics import REPORTS

from .readers import Reader, Readers
from .words import (
    NAME_BYTES,
    Claim,
    EpochUnknown,
    Frozen,
    Granted,
    NamedHosts,
    OpenedEpoch,
    Order,
    PartitionSum,
    Rebuild,
    Refusals,
    SignedRoster,
    SignedTask,
    SumWanted,
    Superseded,
    WindowEnded,
    Word,
)


@dataclass(slots=True)
class _SumsDue:
    """Sums that a frozen window waits for.

    share       the Helper's answer, taken once they are there; None in scheme `local`
    hosts       partition -> host ids of those that count, 16 B each
    """

    share: ShareCame | None
    hosts: dict[int, bytes]
    come: set[int] = field(default_factory=set)


class Coordinator(Leader):
    """A Leader whose reports are read by workers."""

    def __init__(self, *arguments: Any, partitions: int, **named: Any) -> None:
        """Take what a `Leader` takes.

        partitions   of the report topic
        """
        super().__init__(*arguments, **named)
        self._readers = Readers(partitions)
        self._orders: dict[str, deque[Order]] = {}
        self._signed: list[Order] = []
        self._over: dict[BatchKey, int] = {}
        self._wanted: dict[bytes, set[str]] = {}
        self._refusals: dict[tuple[BatchKey, int], Counter[str]] = {}
        self._sums_due: dict[BatchKey, _SumsDue] = {}
        self.sums_taken = 0

    # Events of the Leader

    def handle(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Take one event; a share waits for the workers' sums."""
        if isinstance(event, ShareCame):
            return self._on_share_of(event)
        effects = super().handle(event)
        match event:
            case TaskSeen():
                self._tell_signed(SignedTask(event.signed_bytes))
            case RosterSeen():
                self._tell_signed(SignedRoster(event.signed_bytes))
            case EpochsArrived():
                self._give_epochs(effects)
            case Tick():
                self._want_local_sums()
                self._over = {key: at for key, at in self._over.items() if at > event.now_s}
            case _:
                pass
        return effects

    def restored(self) -> None:
        """Take over what came back from the durable state."""
        self._over = self.chains.settled | self._over
        for frozen in self.chains.frozen.values():
            frozen.window.sums_due = is_local(frozen)

    def note_settled(self, key: BatchKey) -> None:
        """Tell that a window has ended, now that it is durable."""
        until_s = self.chains.settled.get(key, 0)
        self._over[key] = until_s
        self._sums_due.pop(key, None)
        for place in [place for place in self._refusals if place[0] == key]:
            del self._refusals[place]
        self._tell_all(WindowEnded(key, until_s))

    # Workers

    def join(self, worker: str) -> None:
        """Begin with a worker: it learns the tasks, the rosters and the windows that are over."""
        settled = (WindowEnded(key, until_s) for key, until_s in self._over.items())
        self._orders[worker] = deque([*self._signed, *settled])

    def leave(self, worker: str) -> None:
        """Part with a worker that is not heard any more."""
        self._orders.pop(worker, None)
        self._readers.leave(worker)
        for name in [name for name, waiting in self._wanted.items() if worker in waiting]:
            self._unwant(name, worker)

    def orders(self) -> Iterable[tuple[str, list[Order]]]:
        """What is to be said to each worker since the last call."""
        for worker, orders in self._orders.items():
            if orders:
                taken = list(orders)
                orders.clear()
                yield worker, taken

    @property
    def workers(self) -> int:
        """Workers that are heard."""
        return len(self._orders)

    def unread(self, now_s: float) -> int:
        """Partitions that no worker reads."""
        return self._readers.unread(now_s)

    def lag(self, own: int | None, now_s: float) -> int | None:
        """Records that are left to read by all together; None while the log does not answer.

        own         of the topics that the coordinator reads itself
        """
        lag = self._readers.lag(now_s)
        return None if own is None or lag is None else own + lag

    def hear(self, worker: str, word: Word, now_s: float) -> list[LeaderEffect]:
        """Take what a worker says."""
        for claim, before in self._readers.take(worker, word.claims, word.lag, now_s):
            self._begin_claim(worker, claim, before)
        at_s = [Record(REPORTS, 0, 0, b"", b"", appended_s) for appended_s in word.appended_s]
        self.watch.heard(at_s, now_s, self._rule.shortest_s(now_s))
        for named in word.named:
            if self._readers.counts(worker, named.claim):
                self._take_names(named)
        self.rejected.update(word.rejected)
        for refusals in word.refusals:
            if self._readers.counts(worker, refusals.claim):
                self._take_refusals(refusals)
        for name in word.dropped:
            self._unwant(name, worker)
        for name in word.wanted:  # one that was dropped before may be wanted anew
            self._want(name, worker)
        effects: list[LeaderEffect] = []
        for part in word.sums:
            if self._readers.counts(worker, part.claim):
                effects += self._take_sum(part, now_s)
        return effects

    def _begin_claim(self, worker: str, claim: Claim, before: Reader | None) -> None:
        """Forget what was named for a partition: the new claim reads it from the commit."""
        partition = claim.partition
        if before is not None and before.worker != worker:
            self._tell(before.worker, Superseded(before.claim))
        for key, window in self._open.items():
            self.admitted -= window.unname(partition)
            counted = self._refusals.pop((key, partition), Counter())
            window.rejections = dict(Counter(window.rejections) - counted)
        for key, frozen in self.chains.frozen.items():
            self._refusals.pop((key, partition), None)
            self._tell(worker, Rebuild(key, partition, _reports_of(frozen, partition)))
        self._tell(worker, Granted(claim))
        for key, due in self._sums_due.items():
            if partition in due.hosts and partition not in due.come:
                self._tell(worker, SumWanted(key, claim, due.hosts[partition]))

    # Hosts

    def _take_names(self, named: NamedHosts) -> None:
        key, partition = named.key, named.claim.partition
        known = self._directory.tasks.get(key.task_id)
        if known is None:
            return
        if self.is_settled(key):
            late = Reason.WINDOW_RELEASED if named.late_s is None else Reason.WINDOW_LATE
            self.rejected[late.value] += len(named.entries) // ENTRY.itemsize
            return
        window = self.begin_window(key, partition, known)
        roster = self._directory.roster_at(key.window)
        fleet = 0 if roster is None else len(roster)
        for entry in named.each():
            refusal = _name(window, partition, entry)
            if refusal is None:
                self.count_admitted(entry[:HOST_ID_BYTES], fleet, named.late_s)
            elif refusal:
                self.rejected[refusal] += 1
                window.reject(refusal)

    def _take_refusals(self, refusals: Refusals) -> None:
        """Count what a window lost; a claim begun after the freeze counts it a second time."""
        place = refusals.key, refusals.claim.partition
        frozen = self.chains.frozen.get(refusals.key)
        window = self.find_window(refusals.key)
        if window is None or window.resumed or (frozen is not None and place not in self._refusals):
            return
        counted = self._refusals.setdefault(place, Counter())
        counted.update(refusals.reasons)
        for reason, count in refusals.reasons.items():
            window.rejections[reason] = window.rejections.get(reason, 0) + count

    # Epochs

    def _give_epochs(self, effects: Iterable[LeaderEffect]) -> None:
        """Give epochs to the workers that wait for them, and tell all of those that died."""
        for effect in effects:
            if isinstance(effect, KeepEpochs):
                for epoch in (admitted.known for admitted in effect.epochs):
                    waiting = self._wanted.pop(epoch.host_id + epoch.epoch_id, set())
                    for worker in self._orders if epoch.dead else waiting:
                        self._give_epoch(epoch.host_id, epoch.epoch_id, worker)

    def _give_epoch(self, host_id: bytes, epoch_id: bytes, worker: str) -> bool:
        known = self.book.find(host_id, epoch_id)
        if known is None or (known.key is None and not known.dead):
            return False
        times = known.not_before, known.not_after, known.ledger_ctr
        key = None if known.dead else known.key
        opened = OpenedEpoch(host_id, epoch_id, known.epoch_hash, *times, known.dead, key)
        self._tell(worker, opened)
        return True

    def _want(self, name: bytes, worker: str) -> None:
        if not self._give_epoch(name[:HOST_ID_BYTES], name[HOST_ID_BYTES:], worker):
            self._wanted.setdefault(name, set()).add(worker)
            self._tell(worker, EpochUnknown(name))

    def _unwant(self, name: bytes, worker: str) -> None:
        waiting = self._wanted.get(name, set())
        waiting.discard(worker)
        if not waiting:
            self._wanted.pop(name, None)

    # Freezing and sums

    def _freeze(self, key: BatchKey, window: OpenWindow, now_s: float) -> list[LeaderEffect]:
        effects = super()._freeze(key, window, now_s)
        frozen = self.chains.frozen.get(key)
        if frozen is not None:
            window.sums_due = is_local(frozen)
            for partition in range(self._readers.partitions):
                self._refusals.setdefault((key, partition), Counter())
            self._tell_all(Frozen(key))
        return effects

    def _on_share_of(self, event: ShareCame) -> list[LeaderEffect]:
        frozen = self.chains.frozen.get(event.key)
        if frozen is None:
            return super().handle(event)
        try:
            helper_pk = self._directory.parties.helper_pk
            share = verified_share(frozen, event.share_bytes, helper_pk)
        except ReportRejected:
            return super().handle(event)  # which counts it and asks again
        if frozen.window.n != frozen.batch.n:
            # A worker went with a part of it: the answer is asked for again when all is read again.
            frozen.put_off(event.now_s)
            return []
        self._want_sums(frozen, share.accepted.tolist(), event)
        return []

    def _want_local_sums(self) -> None:
        for key, frozen in self.chains.frozen.items():
            gathered = frozen.window.n == frozen.batch.n
            if frozen.window.sums_due and gathered and key not in self._sums_due:
                self._want_sums(frozen, [True] * frozen.batch.n, None)

    def _want_sums(
        self, frozen: FrozenWindow, accepted: list[bool], share: ShareCame | None
    ) -> None:
        hosts: dict[int, bytearray] = {}
        places, names = frozen.window.places, frozen.batch.entries["host_id"].tolist()
        for host, counts in zip(names, accepted, strict=True):
            if counts:
                hosts.setdefault(places[host][0], bytearray()).extend(host)
        due = _SumsDue(share, {partition: bytes(named) for partition, named in hosts.items()})
        self._sums_due[frozen.key] = due
        frozen.window.parts.clear()
        for partition, named in due.hosts.items():
            reader = self._readers.of(partition)
            if reader is not None:
                self._tell(reader.worker, SumWanted(frozen.key, reader.claim, named))

    def _take_sum(self, part: PartitionSum, now_s: float) -> list[LeaderEffect]:
        """Put a partition's sum in its place; with the last one the window goes on."""
        due, frozen = self._sums_due.get(part.key), self.chains.frozen.get(part.key)
        partition = part.claim.partition
        if due is None or frozen is None or partition not in due.hosts or partition in due.come:
            return []
        word_bytes = frozen.known.task.scheme.word_bytes
        wanted = len(due.hosts[partition]) // HOST_ID_BYTES, frozen.known.d * word_bytes
        if (part.hosts, len(part.vector)) != wanted:
            raise ValueError(f"sum: expected {wanted}, got {(part.hosts, len(part.vector))}")
        frozen.window.put_sum(partition, part.vector)
        due.come.add(partition)
        self.sums_taken += 1
        if due.come != due.hosts.keys():
            return []
        del self._sums_due[part.key]
        frozen.window.sums_due = False
        return [] if due.share is None else super().handle(replace(due.share, now_s=now_s))

    # Orders

    def _tell(self, worker: str, order: Order) -> None:
        orders = self._orders.get(worker)
        if orders is not None:
            orders.append(order)

    def _tell_all(self, order: Order) -> None:
        for orders in self._orders.values():
            orders.append(order)

    def _tell_signed(self, order: Order) -> None:
        if order not in self._signed:
            self._signed.append(order)
            self._tell_all(order)


def _name(window: OpenWindow, partition: int, entry: bytes) -> str | None:
    """Put a host into a window; else the reason why not, or nothing where it is known already."""
    host, report = entry[:HOST_ID_BYTES], entry[NAME_BYTES : NAME_BYTES + HOST_ID_BYTES]
    before = window.entries.get(host)
    if before is not None:
        if before == entry and window.places[host][0] == partition:
            return ""  # by a claim that gathers a frozen window again
        same = before[NAME_BYTES : NAME_BYTES + HOST_ID_BYTES] == report
        return (Reason.DUPLICATE if same else Reason.SECOND_REPORT).value
    if window.expected is not None and window.expected.get(host) != report:
        return Reason.WINDOW_LATE.value
    window.name(host, entry, partition)
    return None


def _reports_of(frozen: FrozenWindow, partition: int) -> bytes:
    """Host and report ids of a batch that lie in a partition, or that nobody has found yet."""
    places = frozen.window.places
    return b"".join(
        host + report
        for host, _epoch, report, *_rest in frozen.batch.entries.tolist()
        if places.get(host, (partition, 0))[0] == partition
    )
