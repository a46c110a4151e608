"""What the Helper knows of single hosts: their epochs, whether they count, and their masks.

All of it is a host's own, so that hosts can be divided among workers: `MaskMaker` is what the
Helper asks, whoever holds the keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.admitted_epochs import AdmittedEpochs
from aggregator.protocol.answers import SeenEpoch
from aggregator.protocol.directory import Directory, KnownTask, VerifiedRoster
from aggregator.protocol.known_epochs import KnownEpoch
from aggregator.protocol.party_events import RosterSeen, Stopwatch, TaskSeen
from wire.batch import SignedBatch
from wire.rejection import Reason, ReportRejected

from .batch_rules import BatchVerdict, HostRules, MaskInto, mask_sum_again, missing_epochs


@dataclass(frozen=True, slots=True)
class EpochsAdmitted:
    """What came of epochs that were handed over.

    kept       to be remembered, twins too
    counters   host_id -> (ledger_ctr, not_before) of the epoch with the largest counter
    refused    reason -> epochs
    """

    kept: Sequence[SeenEpoch]
    counters: Mapping[bytes, tuple[int, int]]
    refused: Mapping[str, int]


class MasksUnavailable(Exception):
    """A worker that holds keys fell or hangs: nothing was answered, and the Leader asks again."""


class MaskMaker(Protocol):
    """Judges hosts and adds their masks; nothing of it is durable.

    Every method raises MasksUnavailable, after which it may be called again.
    """

    def __len__(self) -> int:
        """Epochs that are known."""
        ...

    def learn(self, event: TaskSeen | RosterSeen) -> None:
        """Take a task or roster that the Helper has accepted."""
        ...

    def keys_changed(self) -> None:
        """Take new sealing keys, and let go of destroyed ones."""
        ...

    def admit(self, epochs: Sequence[bytes], now_s: float) -> EpochsAdmitted:
        """Verify and open epochs."""
        ...

    def missing(self, signed: SignedBatch, roster: VerifiedRoster) -> list[bytes]:
        """Names of the epochs that a batch's rostered hosts need and that are not at hand."""
        ...

    def judge(
        self, signed: SignedBatch, known: KnownTask, roster: VerifiedRoster, used: frozenset[bytes]
    ) -> BatchVerdict:
        """Check each host of a batch, and add the masks of those that count."""
        ...

    def missing_again(self, signed: SignedBatch, accepted: NDArray[np.bool_]) -> list[bytes]:
        """Names of the epochs that a committed verdict's hosts need and that are not at hand."""
        ...

    def sum_again(
        self, signed: SignedBatch, accepted: NDArray[np.bool_], known: KnownTask
    ) -> NDArray[np.uint32]:
        """Add the masks of a committed verdict's hosts.

        Raises      ReportRejected (epoch_unknown)
        """
        ...

    def prune(self, now_s: float, retention_s: int) -> None:
        """Forget epochs that no report can name any more."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class HostMasks:
    """A `MaskMaker` that holds the keys itself."""

    def __init__(
        self, directory: Directory, book: AdmittedEpochs, mask_into: MaskInto, stopwatch: Stopwatch
    ) -> None:
        """Use the tasks and rosters of a directory, and the epochs of a book."""
        self._directory, self._book = directory, book
        self._mask_into, self._lap = mask_into, stopwatch

    def __len__(self) -> int:
        return len(self._book)

    def learn(self, event: TaskSeen | RosterSeen) -> None:
        """Do nothing: the directory is the Helper's own."""

    def keys_changed(self) -> None:
        """Do nothing: the book asks for a key whenever it needs one."""

    def admit(self, epochs: Sequence[bytes], now_s: float) -> EpochsAdmitted:
        """Verify and open epochs."""
        kept: list[SeenEpoch] = []
        counters: dict[bytes, tuple[int, int]] = {}
        refused: Counter[str] = Counter()
        for raw in epochs:
            try:
                admitted = self._book.admit(raw, now_s)
            except ReportRejected as refusal:
                refused[refusal.reason.value] += 1
                continue
            if admitted is None:
                continue
            if admitted.twin:
                refused[Reason.EPOCH_TWIN.value] += 1
            kept.append(_seen(admitted.known))
            counters[admitted.known.host_id] = self._book.counter(admitted.known.host_id)
        return EpochsAdmitted(kept, counters, refused)

    def missing(self, signed: SignedBatch, roster: VerifiedRoster) -> list[bytes]:
        """Look the epochs of a batch up."""
        return missing_epochs(signed, roster, self._book)

    def judge(
        self, signed: SignedBatch, known: KnownTask, roster: VerifiedRoster, used: frozenset[bytes]
    ) -> BatchVerdict:
        """Judge the hosts of a batch, `used` being those counted in its window before."""
        rules = HostRules(known, roster, self._book, used, self._mask_into, self._lap)
        return rules.judge(signed)

    def missing_again(self, signed: SignedBatch, accepted: NDArray[np.bool_]) -> list[bytes]:
        """Look the epochs of accepted hosts up."""
        return [
            host + epoch
            for host, epoch, *_ in signed.batch.entries[accepted].tolist()
            if (found := self._book.find(host, epoch)) is None or found.key is None
        ]

    def sum_again(
        self, signed: SignedBatch, accepted: NDArray[np.bool_], known: KnownTask
    ) -> NDArray[np.uint32]:
        """Add the masks of accepted hosts."""
        return mask_sum_again(signed, accepted, known, self._book, self._mask_into)

    def prune(self, now_s: float, retention_s: int) -> None:
        """Forget past epochs."""
        self._book.prune(now_s, retention_s)

    def close(self) -> None:
        """Do nothing."""


def remember(book: AdmittedEpochs, seen: SeenEpoch) -> None:
    """Take an epoch over from the durable state; without its key it is asked for again."""
    times = seen.not_before, seen.not_after, seen.ledger_ctr
    book.remember(KnownEpoch(seen.host_id, seen.epoch_id, seen.epoch_hash, *times, dead=seen.dead))


def _seen(known: KnownEpoch) -> SeenEpoch:
    return SeenEpoch(
        known.host_id,
        known.epoch_id,
        known.epoch_hash,
        known.not_before,
        known.not_after,
        known.ledger_ctr,
        known.dead,
    )
