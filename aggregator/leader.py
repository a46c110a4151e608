"""The Leader as a state machine: admits reports, freezes batches, releases what the Helper unmasks.

A window goes open -> frozen -> released or suppressed, never back: late reports are counted and
nothing is released twice. Offsets of the log are committed only up to the first report of the
oldest window that is not settled, so that a restart reads again whatever it still needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey, verify
from transport.port import Record, TopicPartition
from wire.batch import Batch, SignedBatch
from wire.bounds import Scheme
from wire.envelope import OVERHEAD_BYTES, Kind, unwrap
from wire.epoch import EPOCH_BYTES
from wire.ids import TaskId
from wire.rejection import Reason, ReportRejected
from wire.release import FIRST_PREV, Release, SignedRelease, vector_hash
from wire.report import Report

from .admission import PARKED_BYTES, PARKED_PER_HOST, Admissible, Admission, Parked
from .directory import Directory
from .epochs import AdmittedEpoch, EpochBook, Seal
from .events import (
    BatchRefused,
    CallCountersign,
    CallHelper,
    CommitOffsets,
    Countersigned,
    EpochsArrived,
    EpochsWanted,
    HelperAway,
    KeepEpochs,
    KeptEpoch,
    LeaderEffect,
    LeaderEvent,
    ReportsArrived,
    RosterSeen,
    ShareCame,
    Stopwatch,
    StoreCountersigned,
    StoreFrozen,
    StoreRelease,
    StoreSuppressed,
    TaskSeen,
    Tick,
    no_stopwatch,
)
from .helper_state import BatchKey
from .leader_windows import (
    Chain,
    ChainState,
    FrozenWindow,
    StoredFrozen,
    Unsigned,
    freeze_early,
    resume_window,
)
from .release import is_local, released_window, sum_local, unmask, verified_share
from .released import ReleasedWindow
from .window_rows import OpenWindow

_MAX_EPOCH = max(EPOCH_BYTES.values()) + OVERHEAD_BYTES

_TRY_AGAIN = frozenset(
    {Reason.WINDOW_OPEN, Reason.TASK_UNKNOWN, Reason.ROSTER_VERSION, Reason.EPOCH_UNKNOWN}
)
"""Refusals that pass by themselves: a clock behind, a task or roster that has not arrived."""

_NO_SHARE = bytes(32)
_PRUNE_EVERY_S = 60.0
_COUNTERSIGN_RETRY_S = 5.0


class Leader:
    """Admission, windows, batches and releases of every task of one Leader."""

    def __init__(
        self,
        directory: Directory,
        signing_key: SigningKey,
        hpke_keys: Callable[[bytes], HpkeKeyPair | None],
        *,
        ledger_counters: dict[bytes, int] | None = None,
        stopwatch: Stopwatch = no_stopwatch,
    ) -> None:
        """Start empty; `resume_*` bring back what the durable state holds, before any event."""
        self._directory, self._signing_key, self._lap = directory, signing_key, stopwatch
        self._book = EpochBook(directory, Seal.LEADER, hpke_keys, ledger_counters)
        self._admission = Admission(directory, self._book, stopwatch)
        self._open: dict[BatchKey, OpenWindow] = {}
        self._frozen: dict[BatchKey, FrozenWindow] = {}
        self._settled: dict[BatchKey, int] = {}
        self._chains: dict[Chain, ChainState] = {}
        self._parked: dict[bytes, list[Parked]] = {}
        self._parked_bytes = 0
        self._next_offset: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._pruned_s = 0.0
        self.rejected: Counter[str] = Counter()
        self.admitted = 0
        self.released = 0
        self.suppressed: Counter[str] = Counter()

    @property
    def book(self) -> EpochBook:
        """The epochs known now."""
        return self._book

    @property
    def directory(self) -> Directory:
        """The tasks and rosters known now."""
        return self._directory

    @property
    def unsettled(self) -> int:
        """Windows that are open or frozen."""
        return len(self._open) + len(self._frozen)

    # What a restart brings back

    def resume_epoch(self, raw: bytes, *, dead: bool) -> None:
        """Take an epoch over from the durable state; one whose key is gone is left out."""
        try:
            self._book.restore(raw, dead=dead)
        except ReportRejected as refusal:
            self.rejected[refusal.reason.value] += 1

    def resume_settled(self, key: BatchKey, until_s: int) -> None:
        """Remember that a window is settled while reports of it may still come."""
        self._settled[key] = until_s

    def resume_chain(self, chain: Chain, head: bytes) -> None:
        """Take over the hash of a chain's last release."""
        self._chain(chain).head = head

    def resume_unsigned(self, key: BatchKey, chain: Chain, entry: bytes, vector: bytes) -> None:
        """Take over a release without the Helper's signature, in window order."""
        self._chain(chain).unsigned.append(Unsigned(key, chain, entry, vector))

    def resume_frozen(self, stored: StoredFrozen) -> None:
        """Take over a frozen batch: the log brings its reports, then the same bytes are sent."""
        signed = SignedBatch.decode(stored.signed_batch)
        known = self._directory.tasks[stored.key.task_id]
        frozen = FrozenWindow(
            stored.key,
            known,
            self._directory.rosters[signed.batch.roster_ver],
            signed.batch,
            stored.signed_batch,
            resume_window(signed, known, stored),
            stored.closed_s,
        )
        self._frozen[stored.key] = frozen
        self._chain(frozen.chain).queue(frozen)

    # Events

    def handle(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Take one event and say what to do, in order.

        Raises      ReportRejected for a task or roster that is refused
        """
        match event:
            case ReportsArrived():
                return self._on_reports(event)
            case Tick():
                return self._on_tick(event)
            case EpochsArrived():
                return self._on_epochs(event)
            case TaskSeen():
                self._directory.add_task(event.signed_bytes, event.now_s)
                self._admission.tasks_changed()
                return []
            case RosterSeen():
                self._directory.add_roster(event.signed_bytes)
                self._admission.tasks_changed()
                return []
            case ShareCame():
                return self._on_share(event)
            case Countersigned():
                return self._on_countersigned(event)
            case EpochsWanted() | BatchRefused() | HelperAway():
                return self._on_helper(event)

    # Reports

    def _on_reports(self, event: ReportsArrived) -> list[LeaderEffect]:
        self._lap("other")
        for record in event.records:
            self._next_offset[record.topic, record.partition] = record.offset + 1
            self._take(record, event.now_s, event.catching_up)
        return []

    def _take(self, record: Record, received_s: float, catching_up: bool) -> None:
        key: BatchKey | None = None
        try:
            report = self._admission.decode(record.value)
            self._lap("decode")
            known = self._admission.task_of(report)
            key = BatchKey(known.task_id, report.header.cohort, report.header.window)
            self._admission.check_task(report, known, received_s)
            roster = self._admission.roster_of(report, known)
            self._admission.check_window(report, known, received_s, catching_up)
            if key in self._settled:
                raise ReportRejected(Reason.WINDOW_RELEASED, "an unsettled window", "a settled one")
            window = self._window(key, known.d, known.task.scheme is Scheme.LOCAL)
            window.see((record.topic, record.partition), record.offset)
            epoch = self._admission.epoch_of(report, known)
            if epoch is None:
                self._park(report, record, received_s, catching_up, key)
                return
            passed = Admissible(report, known, roster, epoch, key)
            self._lap("authenticate")
            self._admission.insert(passed, window, record.partition)
            self.admitted += 1
        except ReportRejected as refusal:
            self._count(refusal.reason, key)

    def _window(self, key: BatchKey, d: int, local: bool) -> OpenWindow:
        frozen = self._frozen.get(key)
        if frozen is not None:
            return frozen.window
        window = self._open.get(key)
        if window is None:
            window = self._open[key] = OpenWindow(d, local)
        return window

    def _count(self, reason: Reason, key: BatchKey | None) -> None:
        self.rejected[reason.value] += 1
        if key is None:
            return
        frozen = self._frozen.get(key)
        window = self._open.get(key) if frozen is None else frozen.window
        if window is not None:
            window.reject(reason.value)

    def _park(
        self, report: Report, record: Record, received_s: float, late: bool, key: BatchKey
    ) -> None:
        """Keep a report until its epoch comes; a host that fills its places loses the rest."""
        waiting = self._parked.setdefault(report.host_id, [])
        size = len(record.value)
        if len(waiting) >= PARKED_PER_HOST or self._parked_bytes + size > PARKED_BYTES:
            raise ReportRejected(
                Reason.EPOCH_PARKED_FULL, f"at most {PARKED_PER_HOST} waiting", len(waiting) + 1
            )
        waiting.append(Parked(record, received_s, late, key))
        self._parked_bytes += size

    def _unpark(self, host: bytes) -> None:
        for parked in self._parked.pop(host, []):
            self._parked_bytes -= len(parked.record.value)
            self._take(parked.record, parked.received_s, parked.catching_up)

    # Epochs

    def _on_epochs(self, event: EpochsArrived) -> list[LeaderEffect]:
        kept: list[KeptEpoch] = []
        # A host's epochs lie in several partitions; by the log's clock they come in their order.
        for record in sorted(event.records, key=lambda record: record.appended_s):
            self._next_offset[record.topic, record.partition] = record.offset + 1
            try:
                admitted = self._admit_epoch(record.value, event.now_s)
            except ReportRejected as refusal:
                self.rejected[refusal.reason.value] += 1
                continue
            if admitted is not None:
                kept.append(_kept(admitted))
                self._unpark(admitted.known.host_id)
        return [KeepEpochs(kept)] if kept else []

    def _admit_epoch(self, value: bytes, now_s: float) -> AdmittedEpoch | None:
        kind, core = unwrap(value, _MAX_EPOCH)
        if kind is not Kind.EPOCH:
            raise ReportRejected(Reason.ENVELOPE, "an epoch", kind.name)
        admitted = self._book.admit(core, now_s)
        if admitted is not None and admitted.twin:
            self.rejected[Reason.EPOCH_TWIN.value] += 1
        return admitted

    # Time

    def _on_tick(self, event: Tick) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        if not event.catching_up:
            for key in sorted(self._open, key=lambda key: (key.window, key.task_id, key.cohort)):
                if self._closes(key, event.now_s):
                    effects += self._freeze(key, event.now_s)
        for chain in self._chains.values():
            effects += self._advance(chain, event.now_s)
        self._forget(event.now_s)
        return effects + self._offsets()

    def _closes(self, key: BatchKey, now_s: float) -> bool:
        known = self._directory.tasks[key.task_id]
        end = known.window_end(key.window)
        if now_s < end:
            return False
        if now_s >= end + known.task.lateness_s:
            return True
        window = self._open[key]
        before = self._chain((known.task.series, key.cohort)).last_hosts
        return window.n >= known.task.n_min and freeze_early(
            window, before, key.window - known.task.window_s
        )

    def _freeze(self, key: BatchKey, now_s: float) -> list[LeaderEffect]:
        """Make the set of reports final; from here on the window takes nothing more."""
        known, window = self._directory.tasks[key.task_id], self._open[key]
        self._drop_parked(key)
        roster = self._directory.roster_at(key.window)
        if window.n < known.task.n_min or roster is None:
            del self._open[key]
            return self._suppress(key, known.task.series, Reason.N_MIN, now_s)
        entries = window.batch_entries()
        batch = Batch(TaskId(key.task_id), key.cohort, key.window, roster.version, entries)
        message = batch.unsigned()
        signed = message + self._signing_key.sign(message)
        self._lap("freeze")
        del self._open[key]
        window.expected = {}
        frozen = FrozenWindow(key, known, roster, batch, signed, window, now_s)
        self._frozen[key] = frozen
        chain = self._chain(frozen.chain)
        chain.queue(frozen)
        chain.last_hosts = (key.window, frozenset(window.hosts))
        return [StoreFrozen(key, known.task.series, signed, now_s, dict(window.rejections))]

    def _drop_parked(self, key: BatchKey) -> None:
        for host, waiting in list(self._parked.items()):
            kept = [parked for parked in waiting if parked.key != key]
            for parked in waiting:
                if parked.key == key:
                    self._parked_bytes -= len(parked.record.value)
                    self._count(Reason.EPOCH_UNKNOWN, key)
            if kept:
                self._parked[host] = kept
            else:
                del self._parked[host]

    def _advance(self, chain: ChainState, now_s: float) -> list[LeaderEffect]:
        """Send the oldest frozen window and the oldest unsigned release, one of each at a time."""
        effects: list[LeaderEffect] = []
        while chain.frozen and chain.frozen[0].give_up_s < now_s:
            late = chain.frozen[0]
            effects += self._settle(late, Reason.RETENTION, now_s)
        if chain.frozen:
            first = chain.frozen[0]
            if is_local(first) and first.complete:
                effects += self._release_local(first, now_s)
            elif first.complete and not first.in_flight and now_s >= first.retry_at_s:
                first.in_flight = True
                effects.append(CallHelper(first.key, first.signed_batch))
        if chain.unsigned:
            oldest = chain.unsigned[0]
            if not oldest.in_flight and now_s >= oldest.retry_at_s:
                oldest.in_flight = True
                effects.append(CallCountersign(oldest.key, oldest.entry, oldest.vector))
        return effects

    def _forget(self, now_s: float) -> None:
        self._settled = {key: until for key, until in self._settled.items() if until > now_s}
        if now_s - self._pruned_s < _PRUNE_EVERY_S:
            return
        self._pruned_s = now_s
        self._book.prune(now_s, self._directory.longest_retention_s())
        used = {key.task_id for key in (*self._open, *self._frozen)}
        if self._directory.drop_past_tasks(now_s, used):
            self._admission.tasks_changed()

    def _offsets(self) -> list[LeaderEffect]:
        """Commit as far as no unsettled window needs the log again."""
        offsets = dict(self._next_offset)
        windows: Iterable[OpenWindow] = (
            *self._open.values(),
            *(frozen.window for frozen in self._frozen.values()),
        )
        for window in windows:
            for place, first in window.first_seen.items():
                offsets[place] = min(offsets.get(place, first), first)
        moved = {tp: at for tp, at in offsets.items() if at > self._committed.get(tp, -1)}
        self._committed.update(moved)
        return [CommitOffsets(moved)] if moved else []

    # The Helper's answers

    def _on_helper(self, event: EpochsWanted | BatchRefused | HelperAway) -> list[LeaderEffect]:
        frozen = self._frozen.get(event.key)
        if frozen is None:
            return self._countersign_failed(event)
        match event:
            case EpochsWanted():
                return [CallHelper(frozen.key, frozen.signed_batch, tuple(event.epochs))]
            case BatchRefused() if event.reason not in _TRY_AGAIN:
                return self._settle(frozen, Reason(event.reason), event.now_s)
            case _:
                frozen.put_off(event.now_s)
                return []

    def _countersign_failed(
        self, event: EpochsWanted | BatchRefused | HelperAway
    ) -> list[LeaderEffect]:
        for chain in self._chains.values():
            for unsigned in chain.unsigned:
                if unsigned.key == event.key:
                    unsigned.in_flight = False
                    unsigned.retry_at_s = event.now_s + _COUNTERSIGN_RETRY_S
        return []

    def _on_share(self, event: ShareCame) -> list[LeaderEffect]:
        frozen = self._frozen.get(event.key)
        if frozen is None:
            return []
        self._lap("other")
        try:
            share = verified_share(frozen, event.share_bytes, self._directory.parties.helper_pk)
        except ReportRejected as refusal:
            # Not the answer of the pinned Helper to this batch: ask again until retention ends.
            self.rejected[refusal.reason.value] += 1
            frozen.put_off(event.now_s)
            return []
        try:
            vector = unmask(frozen, share, self._lap)
        except ReportRejected as refusal:
            return self._settle(frozen, refusal.reason, event.now_s)
        released = released_window(frozen, share.accepted, vector, dict(event.cleared), event.now_s)
        return self._release(frozen, released, share.hash(), event.share_bytes)

    def _release_local(self, frozen: FrozenWindow, now_s: float) -> list[LeaderEffect]:
        try:
            vector = sum_local(frozen, self._lap)
        except ReportRejected as refusal:
            return self._settle(frozen, refusal.reason, now_s)
        accepted = np.ones(frozen.batch.n, dtype=np.bool_)
        released = released_window(frozen, accepted, vector, {}, now_s)
        return self._release(frozen, released, _NO_SHARE, b"")

    def _release(
        self, frozen: FrozenWindow, released: ReleasedWindow, share_hash: bytes, share: bytes
    ) -> list[LeaderEffect]:
        chain = self._chain(frozen.chain)
        words = released.vector.astype(np.uint32)
        release = Release(chain.head, frozen.batch.hash(), share_hash, vector_hash(words))
        entry = SignedRelease(release, self._signing_key.sign(release.unsigned())).encode()
        chain.head = release.hash()
        vector = b"" if is_local(frozen) else words.astype("<u4").tobytes()
        self.released += 1
        self._drop(frozen)
        if vector:
            chain.unsigned.append(Unsigned(frozen.key, frozen.chain, entry, vector))
        effects: list[LeaderEffect] = [StoreRelease(frozen.key, released, entry, share, vector)]
        return effects + self._advance(chain, released.released_s)

    def _on_countersigned(self, event: Countersigned) -> list[LeaderEffect]:
        for chain in self._chains.values():
            if chain.unsigned and chain.unsigned[0].key == event.key:
                if not self._countersigned(chain.unsigned[0], event.entry):
                    self.rejected[Reason.RELEASE_SIGNATURE.value] += 1
                    return []
                del chain.unsigned[0]
                return [StoreCountersigned(event.key, event.entry)]
        return []

    def _countersigned(self, unsigned: Unsigned, entry: bytes) -> bool:
        try:
            signed = SignedRelease.decode(entry)
        except ReportRejected:
            return False
        own = SignedRelease.decode(unsigned.entry)
        helper_pk = self._directory.parties.helper_pk
        same = signed.release == own.release and signed.sig_leader == own.sig_leader
        return same and verify(helper_pk, signed.release.unsigned(), signed.sig_helper)

    # Settling

    def _suppress(
        self, key: BatchKey, series: str, reason: Reason, now_s: float
    ) -> list[LeaderEffect]:
        self.suppressed[reason.value] += 1
        known = self._directory.tasks[key.task_id]
        self._settled[key] = known.window_end(key.window) + known.task.retention_s
        return [StoreSuppressed(key, series, reason.value, now_s)]

    def _settle(self, frozen: FrozenWindow, reason: Reason, now_s: float) -> list[LeaderEffect]:
        series = frozen.known.task.series
        self._drop(frozen)
        return self._suppress(frozen.key, series, reason, now_s)

    def _drop(self, frozen: FrozenWindow) -> None:
        """Forget the vectors: the window is settled."""
        del self._frozen[frozen.key]
        self._chain(frozen.chain).frozen.remove(frozen)
        self._settled[frozen.key] = frozen.give_up_s

    def _chain(self, chain: Chain) -> ChainState:
        state = self._chains.get(chain)
        if state is None:
            state = self._chains[chain] = ChainState(FIRST_PREV)
        return state


def _kept(admitted: AdmittedEpoch) -> KeptEpoch:
    header, known = admitted.header, admitted.known
    return KeptEpoch(
        known.host_id,
        known.epoch_id,
        known.epoch_hash,
        known.not_before,
        known.not_after,
        header.ledger_ctr,
        known.dead,
        admitted.raw,
    )
