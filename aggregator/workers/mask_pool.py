"""The Helper's workers as its own process sees them: hosts divided by their id, sums put together.

Masks and their sums cross pipes of one machine alone. What is durable, the witness and the
signature stay with the process that answers, so that a batch is answered once whatever falls here.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from aggregator.helper.batch_rules import BatchVerdict
from aggregator.helper.host_masks import EpochsAdmitted, MasksUnavailable
from aggregator.protocol.answers import SeenEpoch
from aggregator.protocol.directory import KnownTask, VerifiedRoster
from aggregator.protocol.party_events import RosterSeen, TaskSeen
from wire.batch import SignedBatch
from wire.rejection import ReportRejected

from .children import ForkServer
from .mask_worker import BatchRows, MaskJob, work_masks

ANSWER_S: Final = 60.0
"""A worker that is silent so long hangs; the judgement of 100,000 hosts takes seconds."""
REMEMBERED_AT_ONCE: Final = 10_000
_HOST: Final = slice(16, 32)
"""Of an epoch's bytes."""

_Questions = Mapping[int, tuple[Any, ...]]
"""Worker -> what it is asked."""


class MaskRecords(Protocol):
    """What a worker that begins is told of the durable state."""

    def epochs(self) -> Any: ...

    def counters(self) -> dict[bytes, tuple[int, int]]: ...


class MaskPool:
    """A `MaskMaker` of several processes."""

    def __init__(
        self, fork_server: ForkServer, count: int, job: MaskJob, records: MaskRecords
    ) -> None:
        """Begin the workers.

        Raises      MasksUnavailable
        """
        self._fork_server, self._job, self._records = fork_server, job, records
        self._log = structlog.get_logger("helper")
        self._learned: list[TaskSeen | RosterSeen] = []
        self._known = [0] * count
        self._number = 0
        self._fallen = set(range(count))
        self._pipes: list[Connection | None] = [None] * count
        self._mend()

    def __len__(self) -> int:
        return sum(self._known)

    # Workers that fall

    def _mend(self) -> None:
        """Begin those that are not there; what they forgot is asked of the Leader again."""
        for worker in sorted(self._fallen):
            self._begin(worker)
            self._fallen.discard(worker)

    def _begin(self, worker: int) -> None:
        pipe = self._pipes[worker]
        if pipe is not None:
            pipe.close()
        self._pipes[worker] = self._fork_server.begin(work_masks, (self._job,))
        marks = self._records.counters()
        own = {host: mark for host, mark in marks.items() if self._worker_of(host) == worker}
        self._ask_one(worker, "count_from", (own,))
        for event in self._learned:
            self._ask_one(worker, *_lesson(event))
        part: list[SeenEpoch] = []
        for epoch in self._records.epochs():
            if self._worker_of(epoch.host_id) == worker:
                part.append(epoch)
            if len(part) == REMEMBERED_AT_ONCE:
                self._ask_one(worker, "remember", (part,))
                part = []
        self._known[worker] = self._ask_one(worker, "remember", (part,))

    def _ask_one(self, worker: int, name: str, arguments: tuple[Any, ...]) -> Any:
        self._number += 1
        self._send(worker, name, arguments)
        return self._answer(worker)

    def _ask(self, name: str, questions: _Questions) -> dict[int, Any]:
        """Ask workers at the same time; a refusal of any is raised once all have answered."""
        self._mend()
        self._number += 1
        answers: dict[int, Any] = {}
        for worker, arguments in questions.items():
            with suppress(MasksUnavailable):
                self._send(worker, name, arguments)
        for worker in questions.keys() - self._fallen:
            with suppress(MasksUnavailable):
                answers[worker] = self._answer(worker)
        if self._fallen:
            raise MasksUnavailable(f"expected {len(questions)} answers, got {len(answers)}")
        for answer in answers.values():
            if isinstance(answer, ReportRejected):
                raise answer
        return answers

    def _ask_all(self, name: str, *arguments: Any) -> dict[int, Any]:
        return self._ask(name, dict.fromkeys(range(len(self._pipes)), arguments))

    def _send(self, worker: int, name: str, arguments: tuple[Any, ...]) -> None:
        pipe = self._pipes[worker]
        try:
            if pipe is None:
                raise EOFError
            pipe.send((self._number, name, arguments))
        except (OSError, EOFError) as error:
            raise self._fell(worker) from error

    def _answer(self, worker: int) -> Any:
        """The answer to the newest question; what it says to older ones nobody waits for."""
        pipe = self._pipes[worker]
        try:
            while pipe is not None and pipe.poll(ANSWER_S):
                number, answer = pipe.recv()
                if number == self._number:
                    return answer
        except (OSError, EOFError) as error:
            raise self._fell(worker) from error
        raise self._fell(worker)

    def _fell(self, worker: int) -> MasksUnavailable:
        self._fallen.add(worker)
        self._known[worker] = 0
        self._log.error("worker fell", place=worker)
        return MasksUnavailable(f"expected an answer of worker {worker}, it fell or hangs")

    # Hosts by worker

    def _worker_of(self, host_id: bytes) -> int:
        return zlib.crc32(host_id) % len(self._known)

    def _rows(
        self, signed: SignedBatch, wanted: NDArray[np.bool_] | None = None
    ) -> dict[int, tuple[NDArray[np.intp], BatchRows]]:
        """The rows of a batch by worker, with their places in it."""
        batch = signed.batch
        hosts = batch.entries["host_id"].tolist()
        workers = np.fromiter(map(self._worker_of, hosts), dtype=np.int64, count=batch.n)
        if wanted is not None:
            workers[~wanted] = -1
        found = {}
        for worker in range(len(self._known)):
            places = np.flatnonzero(workers == worker)
            if len(places):
                entries = batch.entries[places].tobytes()
                head = batch.task_id, batch.cohort, batch.window, batch.roster_ver
                found[worker] = places, BatchRows(*head, entries)
        return found

    # What the Helper asks: `MaskMaker`

    def learn(self, event: TaskSeen | RosterSeen) -> None:
        """Take a task or roster; a worker that falls at it learns it when it is replaced."""
        self._learned.append(event)
        name, arguments = _lesson(event)
        with suppress(MasksUnavailable):
            self._ask_all(name, *arguments)

    def keys_changed(self) -> None:
        """Have the workers read the keys anew, as one that is replaced does."""
        with suppress(MasksUnavailable):
            self._ask_all("keys_changed")

    def admit(self, epochs: Sequence[bytes], now_s: float) -> EpochsAdmitted:
        """Have the workers verify and open epochs."""
        parts: dict[int, list[bytes]] = {}
        for raw in epochs:
            parts.setdefault(self._worker_of(raw[_HOST]), []).append(raw)
        kept: list[SeenEpoch] = []
        counters: dict[bytes, tuple[int, int]] = {}
        refused: Counter[str] = Counter()
        questions = {worker: (part, now_s) for worker, part in parts.items()}
        for worker, (came, known) in self._ask("admit", questions).items():
            self._known[worker] = known
            kept += came.kept
            counters.update(came.counters)
            refused.update(came.refused)
        return EpochsAdmitted(kept, counters, refused)

    def missing(self, signed: SignedBatch, roster: VerifiedRoster) -> list[bytes]:
        """Names of epochs that the workers lack for a batch."""
        del roster  # of the batch's version: the workers know it
        questions = {worker: (rows,) for worker, (_, rows) in self._rows(signed).items()}
        return _together(self._ask("missing", questions))

    def judge(
        self, signed: SignedBatch, known: KnownTask, roster: VerifiedRoster, used: frozenset[bytes]
    ) -> BatchVerdict:
        """Put the workers' verdicts together."""
        del roster
        parts = self._rows(signed)
        answers = self._ask("judge", {w: (rows, used) for w, (_, rows) in parts.items()})
        accepted = np.zeros(signed.batch.n, dtype=np.bool_)
        total = np.zeros(known.d, dtype=np.uint32)
        cleared: Counter[str] = Counter()
        for worker, verdict in answers.items():
            accepted[parts[worker][0]] = verdict.accepted
            total += verdict.mask_sum
            cleared.update(verdict.cleared)
        return BatchVerdict(accepted, total, dict(cleared))

    def missing_again(self, signed: SignedBatch, accepted: NDArray[np.bool_]) -> list[bytes]:
        """Names of epochs that the workers lack for the accepted hosts."""
        questions = {worker: (rows,) for worker, (_, rows) in self._rows(signed, accepted).items()}
        return _together(self._ask("missing_again", questions))

    def sum_again(
        self, signed: SignedBatch, accepted: NDArray[np.bool_], known: KnownTask
    ) -> NDArray[np.uint32]:
        """Put the workers' sums together."""
        questions = {worker: (rows,) for worker, (_, rows) in self._rows(signed, accepted).items()}
        total = np.zeros(known.d, dtype=np.uint32)
        for part in self._ask("sum_again", questions).values():
            total += part
        return total

    def prune(self, now_s: float, retention_s: int) -> None:
        """Have the workers forget past epochs."""
        with suppress(MasksUnavailable):
            self._prune(now_s, retention_s)

    def _prune(self, now_s: float, retention_s: int) -> None:
        for worker, known in self._ask_all("prune", now_s, retention_s).items():
            self._known[worker] = known

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            if pipe is not None:
                pipe.close()


def _lesson(event: TaskSeen | RosterSeen) -> tuple[str, tuple[Any, ...]]:
    if isinstance(event, TaskSeen):
        return "learn_task", (event,)
    return "learn_roster", (event.signed_bytes,)


def _together(names: Mapping[int, list[bytes]]) -> list[bytes]:
    return sorted(name for part in names.values() for name in part)
