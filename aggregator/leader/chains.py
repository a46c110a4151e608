"""A closed window at the Leader: sent to the Helper, released or suppressed, once.

Releases of one (series, cohort) leave in window order, each with the hash of the one before.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.directory import Directory
from aggregator.protocol.interfaces import BatchKey, BatchReply, ReleaseReply, Stopwatch, check_sum
from aggregator.protocol.released import Capacity, ReleasedWindow, counts_are_coarse
from aggregator.statistics.range_checks import SumRules
from privacy.signing import SigningKey, verify
from wire.batch import (
    FIRST_PREV,
    SALT_BYTES,
    AggregateShare,
    Release,
    SignedBatch,
    SignedRelease,
    SignedShare,
    vector_hash,
)
from wire.rejection import Reason, ReportRejected

from . import leader_events as events
from .held_windows import (
    Answered,
    Chain,
    ChainState,
    ClosedBatch,
    StoredRelease,
    Sum,
    resume_window,
)
from .leader_events import HelperAnswer, LeaderEffect, StoreRelease, StoreSuppressed
from .left_out import LeftOut

PERIODS_S: Final = (3600, 86_400, 604_800)


class PeriodSums:
    """Sums of a chain's releases over an hour, a day and a week, held to what hosts can have.

    Noise grows by the root of the number of windows and a lie by their number: what hides in one
    window shows when it goes on. Kept in memory: a Leader that restarts begins anew.
    """

    def __init__(self, rules: SumRules) -> None:
        self._rules = rules
        self._sums: dict[Chain, dict[int, ReleasedWindow]] = {}

    def add(self, released: ReleasedWindow) -> None:
        """Take a window that is about to be released, unless its periods cannot be with it.

        Then they begin anew, so that a lie that ends does not hold up the windows after it.
        Raises      ReportRejected (impossible_sum)
        """
        task = released.task
        before = self._sums.pop((task.series, released.cohort), {})
        found = {
            period_s: _with(before.get(period_s), released, period_s)
            for period_s in PERIODS_S
            if period_s > task.window_s
        }
        for period_s, period in found.items():
            try:
                self._rules.of(task, period.n, period.capacity).check(period.vector)
            except ReportRejected as refusal:
                got = f"{refusal.got}, over windows of {period_s} s"
                raise ReportRejected(refusal.reason, refusal.expected, got) from None
        self._sums[task.series, released.cohort] = found


def _with(before: ReleasedWindow | None, window: ReleasedWindow, period_s: int) -> ReleasedWindow:
    """Both as one, or the later where they are of different periods or task versions."""
    if before is None or before.task_id != window.task_id:
        return window
    if before.window_start_s // period_s != window.window_start_s // period_s:
        return window
    capacity = None
    if before.capacity is not None and window.capacity is not None:
        capacity = before.capacity + window.capacity
    vector = before.vector + window.vector
    return replace(window, n=before.n + window.n, vector=vector, capacity=capacity)


def verified_share(closed: ClosedBatch, share_bytes: bytes, helper_pk: bytes) -> AggregateShare:
    """Decode a share of this very batch.

    Raises      ReportRejected: length, field, padding, share_signature, share_batch, n_min
    """
    signed = SignedShare.decode(share_bytes, closed.batch.n, closed.known.d)
    if not verify(helper_pk, share_bytes[:-64], signed.signature):
        raise ReportRejected(Reason.SHARE_SIGNATURE, "the pinned Helper's signature", "another")
    if signed.share.batch_hash != closed.batch.hash():
        raise ReportRejected(Reason.SHARE_BATCH, "a share of this batch", "another")
    n_min = closed.known.task.n_min
    if signed.share.n_accepted < n_min:
        raise ReportRejected(Reason.N_MIN, f"at least {n_min} hosts", signed.share.n_accepted)
    return signed.share


def unmask(total: Sum, share: AggregateShare) -> NDArray[np.int64]:
    """Subtract the Helper's masks from the accepted hosts' sum, words[d].

    Returns     int64[d], steps, lifted from words modulo 2^32 to signed
    Raises      ReportRejected (check_sum) unless both check words equal the accepted hosts
    """
    words = (total - share.vector).astype(np.uint32)
    vector = words.view(np.int32).astype(np.int64)
    check_sum(vector, share.n_accepted)
    return vector


def released_window(
    closed: ClosedBatch,
    accepted: NDArray[np.bool_],
    vector: NDArray[np.int64],
    cleared: dict[str, int],
    now_s: float,
) -> ReleasedWindow:
    hosts = closed.batch.entries["host_id"][accepted].tolist()
    rejections = dict(closed.window.rejections)
    for reason, count in cleared.items():
        rejections[reason] = rejections.get(reason, 0) + count
    return ReleasedWindow(
        task_id=closed.known.task_id,
        task=closed.known.task,
        cohort=closed.key.cohort,
        window_start_s=closed.key.window,
        n=len(hosts),
        vector=vector,
        rejections=rejections,
        closed_s=closed.closed_s,
        released_s=now_s,
        capacity=Capacity.of(closed.roster.entries[host].gpu_models for host in hosts),
    )


_TRY_AGAIN = frozenset(
    {Reason.WINDOW_OPEN, Reason.TASK_UNKNOWN, Reason.ROSTER_VERSION, Reason.EPOCH_UNKNOWN}
)
"""Refusals that pass by themselves: a clock behind, a task or roster that has not arrived."""

_NO_SHARE = bytes(32)
_COUNTERSIGN_RETRY_S = 5.0


class Chains:
    """Closed windows, what settles them, and the releases that wait for the Helper's signature."""

    def __init__(
        self,
        directory: Directory,
        signing_key: SigningKey,
        sum_rules: SumRules,
        left_out: LeftOut,
        rejected: Counter[str],
        sum_of: Callable[[ClosedBatch, NDArray[np.bool_]], Sum | None],
        stopwatch: Stopwatch,
    ) -> None:
        """Start empty.

        sum_rules   what is never released
        left_out    who moves what is released by being left out
        rejected    the Leader's own counter, by reason
        sum_of      gives the sum of a batch's accepted hosts; None until it is there
        """
        self._directory, self._signing_key, self._lap = directory, signing_key, stopwatch
        self._sum_rules, self._rejected, self._sum_of = sum_rules, rejected, sum_of
        self._period_sums, self._left_out = PeriodSums(sum_rules), left_out
        self.salts = False
        """Whether the Helper takes salt: else a count on a grid could be found by the hash."""
        self.closed: dict[BatchKey, ClosedBatch] = {}
        self.settled: dict[BatchKey, int] = {}
        self._chains: dict[Chain, ChainState] = {}
        self.released = 0
        self.suppressed: Counter[str] = Counter()

    def chain(self, chain: Chain) -> ChainState:
        state = self._chains.get(chain)
        if state is None:
            state = self._chains[chain] = ChainState(FIRST_PREV)
        return state

    def resume_closed(self, stored: events.StoreFrozen, now_s: float) -> StoreSuppressed | None:
        signed = SignedBatch.decode(stored.signed_batch)
        known = self._directory.tasks.get(stored.key.task_id)
        roster = self._directory.rosters.get(signed.batch.roster_ver)
        if known is None or roster is None:
            reason = Reason.TASK_UNKNOWN if known is None else Reason.ROSTER_VERSION
            self.suppressed[reason.value] += 1
            task = None if known is None else known.task
            return StoreSuppressed(
                stored.key, stored.series, task, reason.value, now_s, signed.batch.n
            )
        window = resume_window(signed, known, stored)
        self.queue(
            ClosedBatch(
                *(stored.key, known, roster, signed.batch, stored.signed_batch, window),
                stored.closed_s,
            )
        )
        return None

    # Time

    def queue(self, closed: ClosedBatch) -> None:
        self.closed[closed.key] = closed
        self.chain(closed.chain).queue(closed)

    def advance_all(self, now_s: float) -> list[LeaderEffect]:
        effects: list[LeaderEffect] = []
        for chain in self._chains.values():
            effects += self._advance(chain, now_s)
        self.settled = {key: until for key, until in self.settled.items() if until > now_s}
        return effects

    def _advance(self, chain: ChainState, now_s: float) -> list[LeaderEffect]:
        """Send the oldest closed window and the oldest unsigned release, one of each at a time."""
        effects: list[LeaderEffect] = []
        while chain.closed and chain.closed[0].give_up_s < now_s:
            first = chain.closed[0]
            expired = first.give_up_s == first.known.task.expiry - 1
            reason = Reason.TASK_EXPIRED if expired else Reason.RETENTION
            effects += self._settle(first, reason, now_s)
        if chain.closed:
            first = chain.closed[0]
            if first.local and first.complete:
                effects += self._on_answer(first, None, now_s)
            elif first.answer is not None:
                effects += self._on_answer(first, first.answer, now_s)
            elif first.complete and not first.in_flight and not first.is_put_off(now_s):
                first.in_flight = True
                effects.append(events.CallHelper(first.key, first.signed_batch))
        return effects + self._countersign_next(chain, now_s)

    def _countersign_next(self, chain: ChainState, now_s: float) -> list[LeaderEffect]:
        if not chain.unsigned:
            return []
        oldest = chain.unsigned[0]
        if oldest.in_flight or 0 < oldest.retry_at_s - now_s <= _COUNTERSIGN_RETRY_S:
            return []
        oldest.in_flight = True
        return [events.CallCountersign(oldest.key, oldest.entry, oldest.vector)]

    # The Helper's answers

    def on_helper(self, event: HelperAnswer) -> list[LeaderEffect]:
        reply = event.reply
        if isinstance(reply, ReleaseReply):
            return self._on_signature(event, reply)
        closed = self.closed.get(event.key)
        if closed is None:
            unsigned = self._oldest_unsigned(event.key)
            if unsigned is not None and reply is None:
                unsigned.in_flight = False
                unsigned.retry_at_s = event.now_s + _COUNTERSIGN_RETRY_S
            return []
        if reply is None or reply.refusal in _TRY_AGAIN:
            closed.put_off(event.now_s)
            return []
        if reply.share:
            return self._on_share(closed, reply, event.now_s)
        if reply.need_epochs:
            names = closed.batch.epoch_names()
            wanted = tuple(name for name in dict.fromkeys(reply.need_epochs) if name in names)
            return [events.CallHelper(closed.key, closed.signed_batch, wanted)]
        return self._settle(closed, Reason(reply.refusal), event.now_s)

    def _on_share(self, closed: ClosedBatch, reply: BatchReply, now_s: float) -> list[LeaderEffect]:
        self._lap("other")
        try:
            share = verified_share(closed, reply.share, self._directory.parties.helper_pk)
        except ReportRejected as refusal:
            # Not the answer of the pinned Helper to this batch: ask again until retention ends.
            self._rejected[refusal.reason.value] += 1
            closed.put_off(now_s)
            return []
        if not closed.complete:  # a call of an earlier life: reports are still read again
            closed.put_off(now_s)
            return []
        return self._on_answer(closed, Answered(share, reply.share, reply.cleared), now_s)

    def _on_answer(
        self, closed: ClosedBatch, answer: Answered | None, now_s: float
    ) -> list[LeaderEffect]:
        """Unmask and release, or keep the answer until the sum is there; None: scheme `local`."""
        every = np.ones(closed.batch.n, dtype=np.bool_)
        accepted = every if answer is None else answer.share.accepted
        total = self._sum_of(closed, accepted)
        if total is None:
            closed.answer = answer
            return []
        self._lap("sum")
        share = None if answer is None else answer.share_bytes
        try:
            if answer is None:
                vector, cleared = total.astype(np.int64), {}
                check_sum(vector, closed.batch.n)
            else:
                vector, cleared = unmask(total, answer.share), dict(answer.cleared)
                self._lap("unmask")
            released = released_window(closed, accepted, vector, cleared, now_s)
            self._check(closed, released)
        except ReportRejected as refusal:
            return self._settle(closed, refusal.reason, now_s, str(refusal), share)
        share_hash = _NO_SHARE if answer is None else answer.share.hash()
        return self._release(closed, released, share_hash, share or b"")

    def _check(self, closed: ClosedBatch, released: ReleasedWindow) -> None:
        """Hold a sum to what hosts can have. Raises ReportRejected (impossible_sum)."""
        task, left_out = released.task, closed.window.left_out
        try:
            rules = self._sum_rules.of(task, released.n, released.capacity)
            rules.check(released.vector)
        except ReportRejected:
            self._left_out.suppressed(closed.chain, task, closed.key.window, left_out)
            raise
        self._left_out.released(closed.chain, released, left_out)
        self._period_sums.add(released)

    def _release(
        self, closed: ClosedBatch, released: ReleasedWindow, share_hash: bytes, share: bytes
    ) -> list[LeaderEffect]:
        chain = self.chain(closed.chain)
        vector = released.vector.astype("<u4").tobytes()
        if (self.salts or closed.local) and counts_are_coarse(released.task):
            vector += secrets.token_bytes(SALT_BYTES)
        release = Release(chain.head, closed.batch.hash(), share_hash, vector_hash(vector))
        entry = SignedRelease(release, self._signing_key.sign(release.unsigned())).encode()
        chain.head = release.hash()
        if closed.local:
            vector = b""
        self.released += 1
        self._drop(closed)
        if vector:
            chain.unsigned.append(StoredRelease(closed.key, closed.chain, entry, vector))
        effects: list[LeaderEffect] = [StoreRelease(closed.key, released, entry, share, vector)]
        return effects + self._advance(chain, released.released_s)

    # The Helper's signatures

    def _oldest_unsigned(self, key: BatchKey) -> StoredRelease | None:
        for chain in self._chains.values():
            if chain.unsigned and chain.unsigned[0].key == key:
                return chain.unsigned[0]
        return None

    def _on_signature(self, event: HelperAnswer, reply: ReleaseReply) -> list[LeaderEffect]:
        """Keep the Helper's signature when it holds.

        A refusal is final: the release stays without the signature, and the next one is asked.
        The parties' chains have parted, which the transcripts show; the counter says why.
        """
        unsigned = self._oldest_unsigned(event.key)
        if unsigned is None:
            return []
        chain = self.chain(unsigned.chain)
        if not reply.entry:
            self._rejected[reply.refusal] += 1
            del chain.unsigned[0]
            kept = events.StoreUnsigned(event.key, reply.refusal)
            return [kept, *self._countersign_next(chain, event.now_s)]
        if not self._countersigned(unsigned, reply.entry):
            self._rejected[Reason.RELEASE_SIGNATURE.value] += 1
            return []
        del chain.unsigned[0]
        return [events.StoreCountersigned(event.key, reply.entry)]

    def _countersigned(self, unsigned: StoredRelease, entry: bytes) -> bool:
        try:
            signed = SignedRelease.decode(entry)
        except ReportRejected:
            return False
        own = SignedRelease.decode(unsigned.entry)
        helper_pk = self._directory.parties.helper_pk
        same = signed.release == own.release and signed.sig_leader == own.sig_leader
        return same and verify(helper_pk, signed.release.unsigned(), signed.sig_helper)

    # Settling

    def suppress(
        self,
        key: BatchKey,
        hosts: int,
        reason: Reason,
        now_s: float,
        detail: str = "",
        share: bytes | None = None,
    ) -> list[LeaderEffect]:
        """Settle a window, in which so many hosts have reported, without a release."""
        self.suppressed[reason.value] += 1
        known = self._directory.tasks[key.task_id]
        self.settled[key] = known.window_end(key.window) + known.task.retention_s
        task = known.task
        return [StoreSuppressed(key, task.series, task, reason.value, now_s, hosts, detail, share)]

    def _settle(
        self,
        closed: ClosedBatch,
        reason: Reason,
        now_s: float,
        detail: str = "",
        share: bytes | None = None,
    ) -> list[LeaderEffect]:
        """Suppress a closed window; share: what led to a sum that cannot be."""
        self._drop(closed)
        return self.suppress(closed.key, closed.batch.n, reason, now_s, detail, share)

    def _drop(self, closed: ClosedBatch) -> None:
        del self.closed[closed.key]
        self.chain(closed.chain).closed.remove(closed)
        self.settled[closed.key] = closed.give_up_s
