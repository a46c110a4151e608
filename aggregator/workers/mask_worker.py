"""A worker of the Helper: epochs, keys and masks of the hosts that fall to it.

It answers its own party alone, over a pipe, and keeps nothing: what it forgets with its process is
asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.helper.batch_rules import BatchVerdict
from aggregator.helper.host_masks import EpochsAdmitted, HostMasks, remember
from aggregator.party.key_ring import KeyRing
from aggregator.protocol.admitted_epochs import AdmittedEpochs, Seal
from aggregator.protocol.answers import SeenEpoch
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.known_epochs import Mark
from aggregator.protocol.party_events import TaskSeen, no_stopwatch
from privacy import masks
from privacy.sealing import HpkeKeyPair
from wire.batch import ENTRY, Batch, SignedBatch
from wire.rejection import ReportRejected


@dataclass(frozen=True, slots=True)
class MaskJob:
    """What a worker of the Helper is told; the keys it reads itself."""

    parties: PinnedParties
    key_dir: Path


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch that fall to one worker: its head, and 72 B a host."""

    task_id: bytes
    cohort: int
    window: int
    roster_ver: int
    entries: bytes

    def signed(self) -> SignedBatch:
        """The rows as a batch; the Helper has verified the signature over all of them."""
        entries = np.frombuffer(self.entries, dtype=ENTRY)
        return SignedBatch(
            Batch(self.task_id, self.cohort, self.window, self.roster_ver, entries)  # type: ignore[arg-type]
        )


class MaskWorker:
    """Carries questions out; the names of its methods are what the pipe carries."""

    def __init__(self, job: MaskJob, ring: Callable[[], KeyRing]) -> None:
        """Know nothing but the keys.

        ring        reads the folder of keys
        """
        self._directory, self._ring = Directory(job.parties), ring
        self._keys = ring()
        self._marks: dict[bytes, Mark] = {}
        self._begin()

    def _begin(self) -> None:
        self._book = AdmittedEpochs(self._directory, Seal.HELPER, self._pair, self._marks)
        self._masks = HostMasks(self._directory, self._book, masks.mask_into, no_stopwatch)

    def _pair(self, kid: bytes) -> HpkeKeyPair | None:
        return self._keys.pair(kid)

    def count_from(self, marks: dict[bytes, Mark]) -> None:
        """Take the hosts' largest ledger counters, before any epoch."""
        self._marks = marks
        self._begin()

    def remember(self, seen: Sequence[SeenEpoch]) -> int:
        """Take epochs over from the durable state."""
        for epoch in seen:
            remember(self._book, epoch)
        return len(self._book)

    def learn_task(self, event: TaskSeen) -> None:
        """Take a task."""
        self._directory.add_task(event.signed_bytes, event.now_s, at_start=event.at_start)

    def learn_roster(self, content: bytes) -> None:
        """Take a roster."""
        self._directory.add_roster(content)

    def keys_changed(self) -> None:
        """Read the keys anew."""
        self._keys = self._ring()

    def admit(self, epochs: Sequence[bytes], now_s: float) -> tuple[EpochsAdmitted, int]:
        """Admit epochs; says how many are known then, too."""
        return self._masks.admit(epochs, now_s), len(self._book)

    def missing(self, rows: BatchRows) -> list[bytes]:
        """Look epochs up."""
        roster = self._directory.rosters[rows.roster_ver]
        return self._masks.missing(rows.signed(), roster)

    def judge(self, rows: BatchRows, used: frozenset[bytes]) -> BatchVerdict:
        """Judge hosts and add masks."""
        known, roster = (
            self._directory.tasks[rows.task_id],
            self._directory.rosters[rows.roster_ver],
        )
        return self._masks.judge(rows.signed(), known, roster, used)

    def missing_again(self, rows: BatchRows) -> list[bytes]:
        """Look the epochs of accepted hosts up: all of the rows."""
        signed = rows.signed()
        return self._masks.missing_again(signed, np.ones(signed.batch.n, dtype=np.bool_))

    def sum_again(self, rows: BatchRows) -> NDArray[np.uint32]:
        """Add the masks of accepted hosts: all of the rows."""
        signed, known = rows.signed(), self._directory.tasks[rows.task_id]
        return self._masks.sum_again(signed, np.ones(signed.batch.n, dtype=np.bool_), known)

    def prune(self, now_s: float, retention_s: int) -> int:
        """Forget past epochs; says how many are left."""
        self._masks.prune(now_s, retention_s)
        return len(self._book)


def work_masks(pipe: Connection, job: MaskJob) -> None:
    """What runs in the worker's process, until its party is gone."""
    worker = MaskWorker(job, lambda: KeyRing(job.key_dir))
    while True:
        try:
            number, name, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send((number, _answered(getattr(worker, name), arguments)))


def _answered(question: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return question(*arguments)
    except ReportRejected as refusal:
        return refusal
