"""The Helper as a state machine: it knows masks and host lists, and never sees a vector of a host.

A refusal before the commit consumes nothing. After it the answer is final: the same batch gets the
same bytes, another batch of that window is refused for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol import interfaces
from aggregator.protocol.directory import Directory, KnownTask, VerifiedRoster
from aggregator.protocol.epochs import AdmittedEpochs, KnownEpoch, Mark, Seal
from aggregator.protocol.interfaces import HOST_ID_BYTES, BatchKey, BatchReply, CommittedAnswer
from aggregator.protocol.released import Capacity
from aggregator.statistics.range_checks import SumRules
from privacy import masks
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey, verify
from wire.batch import (
    FIRST_PREV,
    SALT_BYTES,
    AggregateShare,
    SignedBatch,
    SignedRelease,
    SignedShare,
    vector_hash,
)
from wire.fields import Scheme
from wire.rejection import Reason, ReportRejected

from . import batch_rules
from .batch_rules import BatchVerdict
from .helper_state import HelperState


class Helper:
    def __init__(
        self,
        directory: Directory,
        signing_key: SigningKey,
        hpke_keys: Callable[[bytes], HpkeKeyPair | None],
        state: HelperState,
        *,
        ledger_counters: dict[bytes, Mark] | None = None,
        seen_epochs: Iterable[KnownEpoch] = (),
        sum_rules: SumRules | None = None,
        mask_into: batch_rules.MaskInto = masks.mask_into,
        stopwatch: interfaces.Stopwatch = interfaces.no_stopwatch,
        checkpoint: interfaces.Checkpoint = interfaces.no_checkpoint,
    ) -> None:
        """Start from durable state; epochs seen before come without their keys.

        state       what a method of it wrote is on disk when it returns
        sum_rules   what is never countersigned; None: by the tasks alone
        checkpoint  told of each step, for tests
        """
        self.directory, self._signing_key, self._state = directory, signing_key, state
        self._sum_rules = sum_rules or SumRules()
        self.book = AdmittedEpochs(directory, Seal.HELPER, hpke_keys, ledger_counters)
        for seen in seen_epochs:
            self.book.remember(seen)
        self._mask_into, self._lap = mask_into, stopwatch
        self.checkpoint = checkpoint
        self._owed: list[KnownEpoch] = []
        self.refused: Counter[str] = Counter()
        self.cleared: Counter[str] = Counter()

    def learn(self, event: interfaces.TaskSeen | interfaces.RosterSeen) -> None:
        if isinstance(event, interfaces.TaskSeen):
            self.directory.add_task(event.signed_bytes, event.now_s, at_start=event.at_start)
        else:
            self.directory.add_roster(event.signed_bytes)

    def admit_epochs(self, epochs: Sequence[bytes], now_s: float) -> None:
        """Verify and keep epochs. Raises StorageUnavailable: `store_owed` stores them later."""
        for raw in epochs:
            try:
                admitted = self.book.admit(raw, now_s)
            except ReportRejected as refusal:
                self.refused[refusal.reason.value] += 1
                continue
            if admitted is None:
                continue
            if admitted.twin:
                self.refused[Reason.EPOCH_TWIN.value] += 1
            # In memory it is known: it must be durable before anything else is answered.
            self._owed.append(admitted.known)
        self.store_owed()

    def store_owed(self) -> None:
        """Store the epochs that are not durable yet. Raises StorageUnavailable."""
        if not self._owed:
            return
        self.checkpoint("before RememberEpochs")
        hosts = {known.host_id for known in self._owed}
        self._state.keep_epochs(self._owed, {host: self.book.counter(host) for host in hosts})
        self._owed = []
        self.checkpoint("after RememberEpochs")

    def answer_batch(self, signed_batch: bytes, *, complete: bool, now_s: float) -> BatchReply:
        """Answer a batch; `complete`: the Leader has no further epochs to give."""
        try:
            return self._answer(signed_batch, complete, now_s)
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            return BatchReply(refusal=refusal.reason.value)

    def countersign(self, entry: bytes, vector: bytes) -> interfaces.ReleaseReply:
        """Countersign a release and its vector, d u32 little-endian, or refuse it."""
        try:
            return interfaces.ReleaseReply(entry=self._countersigned(entry, vector))
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            return interfaces.ReleaseReply(refusal=refusal.reason.value)

    def _answer(self, signed_batch: bytes, complete: bool, now_s: float) -> BatchReply:
        signed = SignedBatch.decode(signed_batch)
        message = signed_batch[:-64]
        if not verify(self.directory.parties.leader_pk, message, signed.signature):
            raise ReportRejected(Reason.BATCH_SIGNATURE, "the pinned Leader's signature", "another")
        known = batch_rules.task_of(signed, self.directory)
        if known.task.scheme is not Scheme.MASKED:
            raise ReportRejected(Reason.SCHEME, Scheme.MASKED.value, known.task.scheme.value)
        batch_rules.check_time(known, signed.batch.window, now_s, self._state.refuse_before_s)
        key = BatchKey(known.task_id, signed.batch.cohort, signed.batch.window)
        answered = self._state.answer(key)
        if answered is not None:
            return self._answer_again(answered, signed, known, complete)
        roster = batch_rules.check_roster(signed, known, self.directory)
        missing = [] if complete else batch_rules.missing_epochs(signed, roster, self.book)
        if missing:
            return BatchReply(need_epochs=missing)
        return self._judge(signed, message, known, roster, now_s)

    def _judge(
        self,
        signed: SignedBatch,
        message: bytes,
        known: KnownTask,
        roster: VerifiedRoster,
        now_s: float,
    ) -> BatchReply:
        batch = signed.batch
        key = BatchKey(known.task_id, batch.cohort, batch.window)
        used = self._state.used_hosts(known.task.series, batch.window)
        rules = batch_rules.HostRules(known, roster, self.book, used, self._mask_into, self._lap)
        verdict = rules.judge(signed)
        hosts: list[bytes] = batch.entries["host_id"][verdict.accepted].tolist()
        try:
            batch_rules.check_accepted(known, roster, hosts)
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            return BatchReply(refusal=refusal.reason.value, cleared=verdict.cleared)
        batch_hash = batch.hash()
        answer = CommittedAnswer(
            key,
            known.task.series,
            batch_hash,
            np.packbits(verdict.accepted, bitorder="little").tobytes(),
            batch.n,
            dict(verdict.cleared),
            int(now_s),
            message,
            b"".join(hosts),
        )
        self.checkpoint("before CommitAnswer")
        self._state.commit(answer, known.window_end(batch.window))
        self.checkpoint("between commit and sum")
        self.cleared.update(verdict.cleared)
        return self._reply(key, batch_hash, verdict)

    def _reply(self, key: BatchKey, batch_hash: bytes, verdict: BatchVerdict) -> BatchReply:
        share = AggregateShare(batch_hash, verdict.accepted, verdict.mask_sum)
        share_bytes = SignedShare(share, self._signing_key.sign(share.unsigned())).encode()
        self.checkpoint("before StoreReply")
        self._state.keep_reply(key, share_bytes, share.hash())
        self.checkpoint("after StoreReply")
        return BatchReply(share=share_bytes, cleared=verdict.cleared)

    def _answer_again(
        self, answered: CommittedAnswer, signed: SignedBatch, known: KnownTask, complete: bool
    ) -> BatchReply:
        """The same stored bytes; after a crash between commit and sum, the sum is made again."""
        if signed.batch.hash() != answered.batch_hash:
            raise ReportRejected(
                Reason.ANSWERED_OTHERWISE, answered.batch_hash.hex(), "another batch"
            )
        if answered.reply is not None:
            return BatchReply(share=answered.reply, cleared=answered.rejections)
        bits = np.unpackbits(np.frombuffer(answered.bitmap, np.uint8), bitorder="little")
        accepted = bits[: answered.n_batch].astype(np.bool_)
        missing = [
            host + epoch
            for host, epoch, *_ in signed.batch.entries[accepted].tolist()
            if (found := self.book.find(host, epoch)) is None or found.key is None
        ]
        if missing and not complete:
            return BatchReply(need_epochs=missing)
        total = batch_rules.mask_sum_again(signed, accepted, known, self.book, self._mask_into)
        verdict = BatchVerdict(accepted, total, answered.rejections)
        return self._reply(answered.key, answered.batch_hash, verdict)

    def _countersigned(self, entry: bytes, vector: bytes) -> bytes:
        signed = SignedRelease.decode(entry)
        release = signed.release
        if not verify(self.directory.parties.leader_pk, release.unsigned(), signed.sig_leader):
            raise ReportRejected(Reason.RELEASE_SIGNATURE, "the pinned Leader's signature", "other")
        answered = self._state.answer_of_hash(release.batch_hash)
        if answered is None or answered.share_hash != release.share_hash:
            raise ReportRejected(Reason.RELEASE_CHAIN, "an answered batch and its share", "another")
        series, cohort, window = answered.series, answered.key.cohort, answered.key.window
        before = self._state.chain_entry(series, cohort, window)
        if before is not None:
            if SignedRelease.decode(before).release != release:
                raise ReportRejected(Reason.RELEASE_CHAIN, "the release already signed", "another")
            return before
        self._check_kept(answered)
        self._check_link(signed, answered)
        self._check_ranges(_vector(vector, signed, answered), answered)
        signature = self._signing_key.sign(release.unsigned())
        signed_by_both = SignedRelease(release, signed.sig_leader, signature).encode()
        self.checkpoint("before StoreChainEntry")
        self._state.keep_release(series, cohort, window, signed_by_both)
        self.checkpoint("after StoreChainEntry")
        return signed_by_both

    def _check_kept(self, answered: CommittedAnswer) -> None:
        """Sign nothing of windows that a restore closed: which releases were signed is forgotten.

        Raises      ReportRejected: closed_before_restore
        """
        window = answered.key.window
        known = self.directory.tasks.get(answered.key.task_id)
        end_s = window if known is None else known.window_end(window)
        closed_s = self._state.refuse_before_s
        if end_s <= closed_s:
            expected = f"a window that ended after {closed_s}"
            raise ReportRejected(Reason.CLOSED_BEFORE_RESTORE, expected, end_s)

    def _check_ranges(self, vector: NDArray[np.int64], answered: CommittedAnswer) -> None:
        """Hold a release to what its hosts can sum to, as far as task and roster are still known.

        Raises      ReportRejected: release_vector, impossible_sum
        """
        known = self.directory.tasks.get(answered.key.task_id)
        if known is None:
            return
        if len(vector) not in (known.d, known.d + SALT_BYTES // 4):
            raise ReportRejected(Reason.RELEASE_VECTOR, f"{known.d} words", len(vector))
        vector = vector[: known.d]
        capacity = self._capacity(answered)
        self._sum_rules.of(known.task, int(vector[0]), capacity).check(vector)

    def _capacity(self, answered: CommittedAnswer) -> Capacity | None:
        roster = self.directory.roster_at(answered.key.window)
        if roster is None or answered.used is None:
            return None
        ids = range(0, len(answered.used), HOST_ID_BYTES)
        hosts = [roster.entries.get(answered.used[at : at + HOST_ID_BYTES]) for at in ids]
        return Capacity.of(host.gpu_models for host in hosts if host is not None)

    def _check_link(self, signed: SignedRelease, answered: CommittedAnswer) -> None:
        head = self._state.chain_head(answered.series, answered.key.cohort)
        prev = FIRST_PREV if head is None else SignedRelease.decode(head[1]).release.hash()
        if signed.release.prev != prev:
            raise ReportRejected(Reason.RELEASE_CHAIN, prev.hex(), signed.release.prev.hex())
        if head is not None and answered.key.window <= head[0]:
            raise ReportRejected(
                Reason.RELEASE_CHAIN, f"a window after {head[0]}", answered.key.window
            )


def _vector(vector: bytes, signed: SignedRelease, answered: CommittedAnswer) -> NDArray[np.int64]:
    """Return int64[d], steps: the vector that the release names, with its check words, and what
    may stand behind them: the salt's words.
    """
    if len(vector) % 4 or len(vector) < 12:
        raise ReportRejected(Reason.RELEASE_VECTOR, "d words of 4 bytes", len(vector))
    words = np.frombuffer(vector, dtype="<u4")
    accepted = int.from_bytes(answered.bitmap, "little").bit_count()
    if vector_hash(vector) != signed.release.vector_hash:
        raise ReportRejected(Reason.RELEASE_VECTOR, "the vector of the release", "another")
    interfaces.check_sum(words, accepted)
    return words.view("<i4").astype(np.int64)
