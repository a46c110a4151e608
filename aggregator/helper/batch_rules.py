"""The order in which the Helper checks a batch: first the whole, then each host."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.directory import Directory, KnownTask, VerifiedRoster
from aggregator.protocol.epochs import AdmittedEpochs, KnownEpoch
from aggregator.protocol.interfaces import BODY_RETENTION_S, Stopwatch, no_stopwatch
from privacy.masks import tag_and_nonce
from wire.batch import SignedBatch
from wire.fields import ReportId
from wire.rejection import Reason, ReportRejected
from wire.report import ReportHeader
from wire.task import CHECK_WORDS, Task

BLOCK_BYTES: Final = 1 << 20
"""Masks are summed while they are still in the cache: 262 hosts of 1,000 words at a time."""

MaskInto = Callable[[bytes, bytes, NDArray[np.uint32]], None]
"""(k_mask, nonce, out uint32[d]): a port, so that a test can inject masks with equal sums."""


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """Which hosts of a batch count, and the sum of their masks.

    accepted     bool[n]
    mask_sum     uint32[d]
    cleared      reason -> hosts whose bit was cleared
    """

    accepted: NDArray[np.bool_]
    mask_sum: NDArray[np.uint32]
    cleared: Mapping[str, int]


def task_of(signed: SignedBatch, directory: Directory) -> KnownTask:
    batch = signed.batch
    known = directory.tasks.get(batch.task_id)
    if known is None:
        raise ReportRejected(Reason.TASK_UNKNOWN, "a known task", batch.task_id.hex())
    known.require_window(batch.window)
    return known


def check_time(known: KnownTask, window: int, now_s: float, refuse_before_s: int) -> None:
    """By the Helper's own clock the task is unexpired, the window has ended and is retained."""
    known.require_unexpired(window, now_s)
    end = known.window_end(window)
    if now_s < end:
        raise ReportRejected(Reason.WINDOW_OPEN, f"a window over by {int(now_s)}", end)
    if now_s > end + min(known.task.retention_s, BODY_RETENTION_S):
        raise ReportRejected(Reason.RETENTION, f"an answer by {end + known.task.retention_s}", end)
    if end <= refuse_before_s:
        raise ReportRejected(
            Reason.CLOSED_BEFORE_RESTORE, f"a window that ended after {refuse_before_s}", end
        )


def check_roster(signed: SignedBatch, known: KnownTask, directory: Directory) -> VerifiedRoster:
    """The batch names the roster in force at the window's start, which the task's bounds cover."""
    roster = directory.roster_at(signed.batch.window)
    if roster is None or roster.version != signed.batch.roster_ver:
        in_force = "none" if roster is None else roster.version
        raise ReportRejected(
            Reason.ROSTER_VERSION, f"the roster in force, {in_force}", signed.batch.roster_ver
        )
    if signed.batch.n > len(roster):
        raise ReportRejected(Reason.BATCH_SIZE, f"at most {len(roster)} hosts", signed.batch.n)
    roster.check_fits(known.task, signed.batch.cohort)
    return roster


def missing_epochs(
    signed: SignedBatch, roster: VerifiedRoster, book: AdmittedEpochs
) -> list[bytes]:
    """Epochs that the batch's rostered hosts name and the Helper cannot open now."""
    entries = signed.batch.entries
    missing = []
    for host, epoch in zip(entries["host_id"].tolist(), entries["epoch_id"].tolist(), strict=True):
        known = book.find(host, epoch)
        if (known is None or (known.key is None and not known.dead)) and host in roster.entries:
            missing.append(host + epoch)
    return missing


class HostRules:
    def __init__(
        self,
        known: KnownTask,
        roster: VerifiedRoster,
        book: AdmittedEpochs,
        used: frozenset[bytes],
        mask_into: MaskInto,
        lap: Stopwatch = no_stopwatch,
    ) -> None:
        self._known, self._roster, self._book, self._used = known, roster, book, used
        self._mask_into, self._lap = mask_into, lap

    def judge(self, signed: SignedBatch) -> BatchVerdict:
        n, d = signed.batch.n, self._known.d
        accepted = np.zeros(n, dtype=np.bool_)
        total = np.zeros(d, dtype=np.uint32)
        size = min(n, max(1, BLOCK_BYTES // (4 * d)))
        block = np.empty((size, d), dtype=np.uint32)
        cleared: Counter[str] = Counter()
        for start in range(0, n, size):
            stop = min(start + size, n)
            reasons = self._masks_of(signed, start, stop, block)
            checks = np.frombuffer(signed.batch.entries["check"][start:stop].tobytes(), "<u4")
            fits = (checks.reshape(-1, CHECK_WORDS) - block[: stop - start, :CHECK_WORDS] == 1).all(
                axis=1
            )
            for at, refusal in enumerate(reasons):
                reason = Reason.CHECK_WORDS if refusal is None and not fits[at] else refusal
                if reason is None:
                    accepted[start + at] = True
                else:
                    cleared[reason.value] += 1
            keep = accepted[start:stop]
            rows = block[: stop - start]
            self._lap("authenticate")
            total += (rows if keep.all() else rows[keep]).sum(axis=0, dtype=np.uint32)
            self._lap("sum")
        return BatchVerdict(accepted, total, dict(cleared))

    def _masks_of(
        self, signed: SignedBatch, start: int, stop: int, block: NDArray[np.uint32]
    ) -> list[Reason | None]:
        """Write the masks of the hosts that pass; the rows of the others are not used."""
        batch, known = signed.batch, self._known
        head = ReportHeader(batch.cohort, known.d, batch.window, ReportId(bytes(16))).encode()[:32]
        reasons: list[Reason | None] = []
        for at, entry in enumerate(batch.entries[start:stop].tolist()):
            host, epoch_id, report_id, tag_h, _check = entry
            epoch = self._book.find(host, epoch_id)
            reason = self._refusal(host, epoch, batch.cohort, batch.window)
            if reason is None and epoch is not None:
                k_mask, k_id = epoch.keys_of_helper(known.task_id)
                tag, nonce = tag_and_nonce(k_id, head + report_id)
                if hmac.compare_digest(tag, tag_h):
                    self._mask_into(k_mask, nonce, block[at])
                else:
                    reason = Reason.TAG
            reasons.append(reason)
        return reasons

    def _refusal(
        self, host: bytes, epoch: KnownEpoch | None, cohort: int, window: int
    ) -> Reason | None:
        # One look-up for the many that pass: at 100,000 hosts each one is a cache miss.
        if self._roster.cohort(host, self._known.task.series) != cohort:
            return Reason.COHORT if host in self._roster.entries else Reason.HOST_UNKNOWN
        if host in self._used:
            return Reason.HOST_USED
        if epoch is None or (epoch.key is None and not epoch.dead):
            return Reason.EPOCH_UNKNOWN
        if epoch.dead:
            return Reason.EPOCH_TWIN
        if not epoch.covers(self._known.window_end(window), self._known.task.lateness_s):
            return Reason.EPOCH_INTERVAL
        return None


def mask_sum_again(
    signed: SignedBatch,
    accepted: NDArray[np.bool_],
    known: KnownTask,
    book: AdmittedEpochs,
    mask_into: MaskInto,
) -> NDArray[np.uint32]:
    """Add the masks of hosts accepted by a committed verdict, which stands whatever came since.

    Raises      ReportRejected (epoch_unknown) when an epoch's key is not at hand
    """
    batch = signed.batch
    total = np.zeros(known.d, dtype=np.uint32)
    row = np.empty(known.d, dtype=np.uint32)
    for host, epoch_id, report_id, _tag, _check in batch.entries[accepted].tolist():
        epoch = book.find(host, epoch_id)
        if epoch is None or epoch.key is None:
            raise ReportRejected(Reason.EPOCH_UNKNOWN, "the committed hosts' epochs", "fewer")
        k_mask, k_id = epoch.keys_of_helper(known.task_id)
        header = ReportHeader(batch.cohort, known.d, batch.window, ReportId(report_id))
        mask_into(k_mask, tag_and_nonce(k_id, header.encode())[1], row)
        total += row
    return total


def check_accepted(known: KnownTask, roster: VerifiedRoster, hosts: list[bytes]) -> None:
    operators = Counter(roster.entries[host].operator for host in hosts)
    check_release(known.task, operators.values())


def check_release(task: Task, operators: Collection[int]) -> None:
    """The accepted hosts are enough, of enough operators, and enough outside the largest.

    operators   how many hosts were accepted of each operator that has one
    Raises      ReportRejected: n_min, operators, outside_largest_operator
    """
    hosts = sum(operators)
    if hosts < task.n_min:
        raise ReportRejected(Reason.N_MIN, f"at least {task.n_min} accepted hosts", hosts)
    if task.min_operators == 0:
        return
    if len(operators) < task.min_operators:
        raise ReportRejected(
            Reason.OPERATORS, f"at least {task.min_operators} operators", len(operators)
        )
    outside = hosts - max(operators)
    if outside < task.h:
        raise ReportRejected(
            Reason.OUTSIDE_LARGEST_OPERATOR, f"at least {task.h} hosts outside it", outside
        )
