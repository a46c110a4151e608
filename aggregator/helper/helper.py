"""The Helper as a state machine: it knows masks and host lists, and never sees a vector of a host.

A refusal before the commit consumes nothing and may be corrected. After the commit the answer is
final: the same batch gets the same bytes for as long as the state lives, another batch of that
window is refused for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.admitted_epochs import AdmittedEpochs, Seal
from aggregator.protocol.answers import HOST_ID_BYTES, Answer, BatchKey, SeenEpoch
from aggregator.protocol.check_words import check_sum
from aggregator.protocol.directory import Directory, KnownTask, VerifiedRoster
from aggregator.protocol.known_epochs import Mark
from aggregator.protocol.party_events import RosterSeen, Stopwatch, TaskSeen, no_stopwatch
from aggregator.protocol.released import Capacity
from aggregator.statistics.possible_sums import SumRules
from privacy import masks
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey, verify
from wire.batch import FIRST_PREV, Share, SignedBatch, SignedRelease, SignedShare, vector_hash
from wire.bounds import Scheme
from wire.rejection import Reason, ReportRejected

from .batch_rules import (
    BatchVerdict,
    MaskInto,
    check_accepted,
    check_roster,
    check_signature,
    check_time,
    task_of,
)
from .helper_events import (
    AnswerCommitted,
    BatchGiven,
    CommitAnswer,
    EpochsGiven,
    HelperEffect,
    HelperEvent,
    ReleaseGiven,
    RememberEpochs,
    ReplyCountersigned,
    ReplyNeedEpochs,
    ReplyRefused,
    ReplyShare,
    StoreChainEntry,
    StoreReply,
)
from .host_masks import HostMasks, MaskMaker, remember

_Event = TypeVar("_Event")


class HelperRecords(Protocol):
    """What the Helper looks up in its durable state; it writes through effects alone."""

    @property
    def refuse_before_s(self) -> int: ...

    def answer(self, key: BatchKey) -> Answer | None: ...

    def answer_of_hash(self, batch_hash: bytes) -> Answer | None: ...

    def used_hosts(self, series: str, window: int) -> frozenset[bytes]: ...

    def chain_entry(self, series: str, cohort: int, window: int) -> bytes | None: ...

    def chain_head(self, series: str, cohort: int) -> tuple[int, bytes] | None: ...


class Helper:
    """Answers batches with the sum of the accepted hosts' masks."""

    def __init__(
        self,
        directory: Directory,
        signing_key: SigningKey,
        hpke_keys: Callable[[bytes], HpkeKeyPair | None],
        records: HelperRecords,
        *,
        ledger_counters: dict[bytes, Mark] | None = None,
        seen_epochs: Iterable[SeenEpoch] = (),
        sum_rules: SumRules | None = None,
        mask_into: MaskInto = masks.mask_into,
        stopwatch: Stopwatch = no_stopwatch,
        mask_maker: MaskMaker | None = None,
    ) -> None:
        """Start from durable records; epochs seen before come without their keys.

        sum_rules   what is never countersigned; None: by the tasks alone
        mask_maker  holds epochs and keys; None: this object does
        """
        self._directory, self._signing_key, self._records = directory, signing_key, records
        self._sum_rules = sum_rules or SumRules()
        self._book = AdmittedEpochs(directory, Seal.HELPER, hpke_keys, ledger_counters)
        for seen in seen_epochs:
            remember(self._book, seen)
        if mask_maker is None:
            mask_maker = HostMasks(directory, self._book, mask_into, stopwatch)
        self.masks = mask_maker
        self._pending: dict[BatchKey, tuple[bytes, BatchVerdict]] = {}
        self.refused: Counter[str] = Counter()
        self.cleared: Counter[str] = Counter()

    @property
    def book(self) -> AdmittedEpochs:
        """The epochs that this object holds itself."""
        return self._book

    @property
    def directory(self) -> Directory:
        """The tasks and rosters known now."""
        return self._directory

    def handle(self, event: HelperEvent) -> list[HelperEffect]:
        """Take one event and say what to do, in order.

        Raises      ReportRejected for a task or roster that is refused
        """
        match event:
            case TaskSeen():
                self._directory.add_task(event.signed_bytes, event.now_s, at_start=event.at_start)
                self.masks.learn(event)
                return []
            case RosterSeen():
                self._directory.add_roster(event.signed_bytes)
                self.masks.learn(event)
                return []
            case EpochsGiven():
                return self._on_epochs(event)
            case AnswerCommitted():
                return self._on_committed(event.key)
            case BatchGiven():
                return self._or_refusal(self._on_batch, event)
            case ReleaseGiven():
                return self._or_refusal(self._on_release, event)
            case _:
                assert_never(event)

    def _or_refusal(
        self, answer: Callable[[_Event], list[HelperEffect]], event: _Event
    ) -> list[HelperEffect]:
        try:
            return answer(event)
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            return [ReplyRefused(refusal.reason.value, {})]

    def _on_epochs(self, event: EpochsGiven) -> list[HelperEffect]:
        came = self.masks.admit(event.epochs, event.now_s)
        self.refused.update(came.refused)
        return [RememberEpochs(came.kept, came.counters)] if came.kept else []

    def _on_batch(self, event: BatchGiven) -> list[HelperEffect]:
        signed = SignedBatch.decode(event.signed_batch)
        message = event.signed_batch[:-64]
        check_signature(signed, message, self._directory)
        known = task_of(signed, self._directory)
        if known.task.scheme is not Scheme.MASKED:
            raise ReportRejected(Reason.SCHEME, Scheme.MASKED.value, known.task.scheme.value)
        check_time(known, signed.batch.window, event.now_s, self._records.refuse_before_s)
        key = BatchKey(known.task_id, signed.batch.cohort, signed.batch.window)
        answered = self._records.answer(key)
        if answered is not None:
            return self._answer_again(answered, signed, known, event)
        roster = check_roster(signed, known, self._directory)
        missing = [] if event.epochs_complete else self.masks.missing(signed, roster)
        if missing:
            return [ReplyNeedEpochs(missing)]
        return self._judge(signed, message, known, roster, event)

    def _judge(
        self,
        signed: SignedBatch,
        message: bytes,
        known: KnownTask,
        roster: VerifiedRoster,
        event: BatchGiven,
    ) -> list[HelperEffect]:
        batch = signed.batch
        key = BatchKey(known.task_id, batch.cohort, batch.window)
        used = self._records.used_hosts(known.task.series, batch.window)
        verdict = self.masks.judge(signed, known, roster, used)
        hosts: list[bytes] = batch.entries["host_id"][verdict.accepted].tolist()
        try:
            check_accepted(known, roster, hosts)
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            return [ReplyRefused(refusal.reason.value, verdict.cleared)]
        batch_hash = batch.hash()
        answer = Answer(
            key,
            known.task.series,
            batch_hash,
            _bitmap(verdict.accepted),
            batch.n,
            dict(verdict.cleared),
            int(event.now_s),
            message,
            b"".join(hosts),
        )
        self._pending[key] = (batch_hash, verdict)
        return [CommitAnswer(answer, known.window_end(batch.window))]

    def _on_committed(self, key: BatchKey) -> list[HelperEffect]:
        batch_hash, verdict = self._pending.pop(key)
        self.cleared.update(verdict.cleared)
        return self._reply(key, batch_hash, verdict)

    def _reply(self, key: BatchKey, batch_hash: bytes, verdict: BatchVerdict) -> list[HelperEffect]:
        share = Share(batch_hash, verdict.accepted, verdict.mask_sum)
        signature = self._signing_key.sign(share.unsigned())
        share_bytes = SignedShare(share, signature).encode()
        return [
            StoreReply(key, share_bytes, share.hash()),
            ReplyShare(share_bytes, verdict.cleared),
        ]

    def _answer_again(
        self, answered: Answer, signed: SignedBatch, known: KnownTask, event: BatchGiven
    ) -> list[HelperEffect]:
        """The same stored bytes; after a crash between commit and sum, the sum is made again."""
        if signed.batch.hash() != answered.batch_hash:
            raise ReportRejected(
                Reason.ANSWERED_OTHERWISE, answered.batch_hash.hex(), "another batch"
            )
        if answered.reply is not None:
            return [ReplyShare(answered.reply, answered.rejections)]
        bits = np.unpackbits(np.frombuffer(answered.bitmap, np.uint8), bitorder="little")
        accepted = bits[: answered.n_batch].astype(np.bool_)
        missing = self.masks.missing_again(signed, accepted)
        if missing and not event.epochs_complete:
            return [ReplyNeedEpochs(missing)]
        total = self.masks.sum_again(signed, accepted, known)
        verdict = BatchVerdict(accepted, total, answered.rejections)
        return self._reply(answered.key, answered.batch_hash, verdict)

    def _on_release(self, event: ReleaseGiven) -> list[HelperEffect]:
        signed = SignedRelease.decode(event.entry)
        release = signed.release
        if not verify(self._directory.parties.leader_pk, release.unsigned(), signed.sig_leader):
            raise ReportRejected(Reason.RELEASE_SIGNATURE, "the pinned Leader's signature", "other")
        answered = self._records.answer_of_hash(release.batch_hash)
        if answered is None or answered.share_hash != release.share_hash:
            raise ReportRejected(Reason.RELEASE_CHAIN, "an answered batch and its share", "another")
        series, cohort, window = answered.series, answered.key.cohort, answered.key.window
        before = self._records.chain_entry(series, cohort, window)
        if before is not None:
            return [self._same_entry(before, signed)]
        self._check_kept(answered)
        self._check_link(signed, answered)
        vector = _vector(event.vector, signed, answered)
        self._check_possible(vector, answered)
        signature = self._signing_key.sign(release.unsigned())
        entry = SignedRelease(release, signed.sig_leader, signature).encode()
        return [StoreChainEntry(series, cohort, window, entry), ReplyCountersigned(entry)]

    def _check_kept(self, answered: Answer) -> None:
        """Sign nothing of windows that a restore closed: which releases were signed is forgotten.

        Raises      ReportRejected: closed_before_restore
        """
        window = answered.key.window
        known = self._directory.tasks.get(answered.key.task_id)
        end_s = window if known is None else known.window_end(window)
        closed_s = self._records.refuse_before_s
        if end_s <= closed_s:
            expected = f"a window that ended after {closed_s}"
            raise ReportRejected(Reason.CLOSED_BEFORE_RESTORE, expected, end_s)

    def _check_possible(self, vector: NDArray[np.int64], answered: Answer) -> None:
        """Hold a release to what its hosts can sum to, as far as task and roster are still known.

        Raises      ReportRejected: release_vector, impossible_sum
        """
        known = self._directory.tasks.get(answered.key.task_id)
        if known is None:
            return
        if vector.shape != (known.d,):
            raise ReportRejected(Reason.RELEASE_VECTOR, f"{known.d} words", len(vector))
        capacity = self._capacity(answered)
        self._sum_rules.of(known.task, int(vector[0]), capacity).check(vector)

    def _capacity(self, answered: Answer) -> Capacity | None:
        """The accepted hosts' GPUs; None once their ids are erased."""
        roster = self._directory.roster_at(answered.key.window)
        if roster is None or answered.used is None:
            return None
        ids = range(0, len(answered.used), HOST_ID_BYTES)
        hosts = [roster.entries.get(answered.used[at : at + HOST_ID_BYTES]) for at in ids]
        return Capacity.of(host.gpu_models for host in hosts if host is not None)

    def _same_entry(self, stored: bytes, signed: SignedRelease) -> HelperEffect:
        if SignedRelease.decode(stored).release != signed.release:
            raise ReportRejected(Reason.RELEASE_CHAIN, "the release already signed", "another")
        return ReplyCountersigned(stored)

    def _check_link(self, signed: SignedRelease, answered: Answer) -> None:
        head = self._records.chain_head(answered.series, answered.key.cohort)
        prev = FIRST_PREV if head is None else SignedRelease.decode(head[1]).release.hash()
        if signed.release.prev != prev:
            raise ReportRejected(Reason.RELEASE_CHAIN, prev.hex(), signed.release.prev.hex())
        if head is not None and answered.key.window <= head[0]:
            raise ReportRejected(
                Reason.RELEASE_CHAIN, f"a window after {head[0]}", answered.key.window
            )


def _vector(vector: bytes, signed: SignedRelease, answered: Answer) -> NDArray[np.int64]:
    """Return int64[d], steps: the vector that the release names, with its check words."""
    if len(vector) % 4 or len(vector) < 12:
        raise ReportRejected(Reason.RELEASE_VECTOR, "d words of 4 bytes", len(vector))
    words = np.frombuffer(vector, dtype="<u4")
    accepted = int.from_bytes(answered.bitmap, "little").bit_count()
    if vector_hash(words) != signed.release.vector_hash:
        raise ReportRejected(Reason.RELEASE_VECTOR, "the vector of the release", "another")
    check_sum(words, accepted)
    return words.view("<i4").astype(np.int64)


def _bitmap(accepted: NDArray[np.bool_]) -> bytes:
    return np.packbits(accepted, bitorder="little").tobytes()
