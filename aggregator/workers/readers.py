"""Who reads each partition now: of several claims of one partition the newest alone counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wire.topics import REPORTS, TOPICS

from .words import Claim

PARTITIONS: Final = next(topic.partitions for topic in TOPICS if topic.name == REPORTS)
"""Of the report topic as a Leader makes it; a log may have been given more."""

SILENT_S: Final = 2.0
"""A worker speaks twenty times a second; one that is silent so long may have reports unread."""


@dataclass(slots=True)
class Reader:
    """The claim that counts, whose it is, and what it last said."""

    worker: str
    claim: Claim
    lag: int | None
    heard_s: float


class Readers:
    """The claims of all workers."""

    def __init__(self, partitions: int) -> None:
        """Begin with nobody reading.

        partitions   of the report topic
        """
        self.partitions = partitions
        self._readers: dict[int, Reader] = {}
        self._superseded: dict[str, set[Claim]] = {}

    def of(self, partition: int) -> Reader | None:
        """Who reads a partition."""
        return self._readers.get(partition)

    def counts(self, worker: str, claim: Claim) -> bool:
        """Whether what is said under a claim counts."""
        reader = self._readers.get(claim.partition)
        return reader is not None and (reader.worker, reader.claim) == (worker, claim)

    def leave(self, worker: str) -> None:
        """Forget a worker."""
        self._superseded.pop(worker, None)
        self._readers = {p: r for p, r in self._readers.items() if r.worker != worker}

    def take(
        self, worker: str, claims: Sequence[Claim], lag: int | None, now_s: float
    ) -> Iterator[tuple[Claim, Reader | None]]:
        """Take all claims that a worker holds; give those that begin, and whom each follows.

        lag         records of its partitions that it has left to read
        Raises      ValueError for a partition that there is not
        """
        held = {claim.partition: claim for claim in claims}
        for partition, reader in list(self._readers.items()):
            if reader.worker == worker and partition not in held:
                del self._readers[partition]
        over = self._superseded.setdefault(worker, set())
        over &= set(claims)
        for partition, claim in held.items():
            if not 0 <= partition < self.partitions:
                raise ValueError(f"partition: expected 0..{self.partitions - 1}, got {partition}")
            if claim in over:
                continue  # it was told, and has not started over yet
            before = self._readers.get(partition)
            self._readers[partition] = Reader(worker, claim, lag, now_s)
            if before is None or (before.worker, before.claim) != (worker, claim):
                if before is not None and before.worker != worker:
                    self._superseded.setdefault(before.worker, set()).add(before.claim)
                yield claim, before

    def lag(self, now_s: float) -> int | None:
        """Records that are left to read; None while the log does not answer a reader."""
        lags = [self._lag_of(partition, now_s) for partition in range(self.partitions)]
        return None if None in lags else sum(lag or 0 for lag in lags)

    def unread(self, now_s: float) -> int:
        """Partitions that nobody reads, or one who has been silent for SILENT_S."""
        return sum(not self._is_read(partition, now_s) for partition in range(self.partitions))

    def _is_read(self, partition: int, now_s: float) -> bool:
        reader = self._readers.get(partition)
        return reader is not None and abs(now_s - reader.heard_s) <= SILENT_S

    def _lag_of(self, partition: int, now_s: float) -> int | None:
        if not self._is_read(partition, now_s):
            return 1  # nobody knows: there may be some
        return self._readers[partition].lag
