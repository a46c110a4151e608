"""What the Leader holds of each window: masked vectors, and closed windows by chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.directory import KnownTask, VerifiedRoster
from aggregator.protocol.interfaces import BatchKey
from transport.interface import TopicPartition
from wire.batch import ENTRY, AggregateShare, Batch, Entries, SignedBatch
from wire.fields import Scheme
from wire.rejection import Reason

from .leader_events import StoreFrozen

BLOCK_BYTES: Final = 1 << 20
"""Rows of one block: 256 hosts x 1,000 words; memory grows by blocks and sums stay in the cache."""

Sum = NDArray[np.uint32] | NDArray[np.int64]
MASKED_WORD: Final = np.dtype("<u4")
LOCAL_WORD: Final = np.dtype("<i8")


def word_of(scheme: Scheme) -> np.dtype[np.uint32] | np.dtype[np.int64]:
    return LOCAL_WORD if scheme is Scheme.LOCAL else MASKED_WORD


def words_of(vector: bytes, scheme: Scheme) -> Sum:
    if scheme is Scheme.LOCAL:
        return np.frombuffer(vector, dtype=LOCAL_WORD)
    return np.frombuffer(vector, dtype=MASKED_WORD)


class PartitionRows:
    def __init__(self, d: int, word: np.dtype[np.uint32] | np.dtype[np.int64]) -> None:
        self._d, self._word = d, word
        self._row_bytes = d * word.itemsize
        self._rows = max(1, BLOCK_BYTES // self._row_bytes)
        self._blocks: list[bytearray] = []
        self._view = memoryview(b"")
        self._used = self._rows
        self.n = 0

    def free_row(self) -> memoryview:
        """The next host's d words, little-endian, to be written; `keep_row` makes them count."""
        if self._used == self._rows:
            self._blocks.append(bytearray(self._rows * self._row_bytes))
            self._view = memoryview(self._blocks[-1])
            self._used = 0
        at = self._used * self._row_bytes
        return self._view[at : at + self._row_bytes]

    def keep_row(self) -> None:
        self._used += 1
        self.n += 1

    def sum_of(self, keep: NDArray[np.bool_]) -> Sum:
        """Add the rows of the kept hosts, modulo 2^32 or 2^64.

        keep        bool[n], in the order of `keep_row`
        Returns     word[d]
        """
        total = np.zeros(self._d, dtype=self._word)
        for at, block in enumerate(self._blocks):
            first = at * self._rows
            kept = keep[first : first + self._rows]
            rows = np.frombuffer(block, dtype=self._word).reshape(-1, self._d)[: len(kept)]
            total += (rows if kept.all() else rows[kept]).sum(axis=0, dtype=self._word)
        return total


@dataclass(slots=True)
class OpenWindow:
    """Everything that one (task, cohort, window) has gathered.

    hosts       host_id -> first 128 B of its report and its box's tag: the dedupe record
    places      host_id -> (partition, row)
    entries     72 B of a batch entry for each host, in order of admission
    first_seen  where the log must be read again from while this window is not settled
    expected    host_id -> report_id, once closed: only what the batch names is still admitted,
                which after a restart is all of it and otherwise nothing
    left_out    hosts that reported, and are not in the batch by chance
    excess      operator -> reports of its hosts beyond the first of each
    reserved_bytes  reserved for the vectors that may come
    refused     whole, for want of room: nothing of it is taken any more
    resumed     rebuilt from the log, whose refusals were counted before the restart
    """

    d: int
    scheme: Scheme
    hosts: dict[bytes, bytes] = field(default_factory=dict)
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    entries: dict[bytes, bytes] = field(default_factory=dict)
    parts: dict[int, PartitionRows] = field(default_factory=dict)
    first_seen: dict[TopicPartition, int] = field(default_factory=dict)
    rejections: dict[str, int] = field(default_factory=dict)
    expected: Mapping[bytes, bytes] | None = None
    left_out: frozenset[bytes] = frozenset()
    excess: dict[str, int] = field(default_factory=dict)
    reserved_bytes: int = 0
    refused: bool = False
    resumed: bool = False

    @property
    def n(self) -> int:
        return len(self.hosts)

    @property
    def row_bytes(self) -> int:
        return self.d * self.scheme.word_bytes

    @property
    def held_bytes(self) -> int:
        return max(
            self.reserved_bytes, sum(rows.n for rows in self.parts.values()) * self.row_bytes
        )

    @property
    def lost_to_overload(self) -> bool:
        return self.refused or Reason.OVERLOAD in self.rejections

    @property
    def refused_whole(self) -> bool:
        """Whether it has no hosts, and will have none, for want of room."""
        return not self.n and self.lost_to_overload

    @property
    def closed(self) -> bool:
        """Closed in this process: it takes nothing more, and nothing may wait for it."""
        return self.expected is not None and not self.resumed

    def row_for(self, partition: int) -> memoryview:
        """Where the next host's vector is written, d words; it counts once `add` has it.

        A window without hosts has no rows: what is refused before the first host leaves none.
        """
        if not self.hosts:
            return memoryview(bytearray(self.row_bytes))
        return self._rows_of(partition).free_row()

    def _rows_of(self, partition: int) -> PartitionRows:
        rows = self.parts.get(partition)
        if rows is None:
            rows = self.parts[partition] = PartitionRows(self.d, word_of(self.scheme))
        return rows

    def add(
        self, host: bytes, record: bytes, entry: bytes, partition: int, vector: memoryview
    ) -> None:
        rows = self._rows_of(partition)
        if not self.hosts:
            rows.free_row()[:] = vector
        self.hosts[host] = record
        self.places[host] = (partition, rows.n)
        self.entries[host] = entry
        rows.keep_row()

    def name(self, host: bytes, entry: bytes, partition: int) -> None:
        self.hosts[host] = b""
        self.places[host] = (partition, 0)
        self.entries[host] = entry

    def leave_out(self, hosts: frozenset[bytes]) -> None:
        """Take hosts out for good, before the batch is made; their rows are in no sum."""
        self.left_out = hosts
        for host in hosts:
            del self.hosts[host], self.places[host], self.entries[host]

    def unname(self) -> int:
        gone = self.n
        for kept in (self.hosts, self.places, self.entries):
            kept.clear()
        return gone

    def reject(self, reason: str) -> None:
        if not self.resumed:
            self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def see(self, place: TopicPartition, offset: int) -> None:
        self.first_seen.setdefault(place, offset)

    def batch_entries(self) -> Entries:
        """The admitted hosts as ENTRY[n], host_id strictly increasing."""
        joined = b"".join(self.entries[host] for host in sorted(self.entries))
        return np.frombuffer(joined, dtype=ENTRY)

    def sum_of(self, hosts: Iterable[bytes]) -> Sum:
        keep = {part: np.zeros(rows.n, dtype=np.bool_) for part, rows in self.parts.items()}
        for host in hosts:
            partition, row = self.places[host]
            keep[partition][row] = True
        sums = [rows.sum_of(keep[part]) for part, rows in self.parts.items()]
        total = sums[0]
        for more in sums[1:]:
            total = total + more
        return total


RETRY_FIRST_S: Final = 0.5
RETRY_LAST_S: Final = 30.0

Chain = tuple[str, int]
"""(task_series, cohort): releases of one chain leave in window order."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A Helper's verified share of a batch, and how many bits it cleared, by reason."""

    share: AggregateShare
    share_bytes: bytes
    cleared: Mapping[str, int]


@dataclass(slots=True, eq=False)
class ClosedBatch:
    """A batch whose bytes are final, waiting for the Helper.

    answer      the Helper's, while the sum of the hosts that it accepted is still to come
    in_flight   a call is out; retry_at_s says when the next one may begin
    """

    key: BatchKey
    known: KnownTask
    roster: VerifiedRoster
    batch: Batch
    signed_batch: bytes
    window: OpenWindow
    closed_s: float
    answer: Answered | None = None
    in_flight: bool = False
    retry_at_s: float = 0.0
    retry_in_s: float = RETRY_FIRST_S

    @property
    def chain(self) -> Chain:
        return self.known.task.series, self.key.cohort

    @property
    def local(self) -> bool:
        """Whether it needs no Helper."""
        return self.known.task.scheme is Scheme.LOCAL

    @property
    def complete(self) -> bool:
        """Whether every host of the batch is at hand; after a restart the log brings them."""
        return self.window.n == self.batch.n

    @property
    def give_up_s(self) -> int:
        """The last second in which the Helper answers it."""
        return self.known.over_s(self.key.window)

    def put_off(self, now_s: float) -> None:
        self.in_flight = False
        self.retry_at_s = now_s + self.retry_in_s
        self.retry_in_s = min(self.retry_in_s * 2, RETRY_LAST_S)

    def is_put_off(self, now_s: float) -> bool:
        """Whether it waits for its next call; a clock that was ahead then holds nothing up."""
        return 0 < self.retry_at_s - now_s <= RETRY_LAST_S


@dataclass(slots=True)
class StoredRelease:
    """A release as the state has it.

    vector      empty once the Helper has signed
    in_flight   the Helper is asked for its signature now; retry_at_s: else when it will be
    """

    key: BatchKey
    chain: Chain
    entry: bytes
    vector: bytes
    in_flight: bool = False
    retry_at_s: float = 0.0


@dataclass(slots=True)
class ChainState:
    """One chain: hash of its last release, closed windows and unsigned releases in order."""

    head: bytes
    closed: list[ClosedBatch] = field(default_factory=list)
    unsigned: list[StoredRelease] = field(default_factory=list)
    last_hosts: tuple[int, frozenset[bytes]] = (-1, frozenset())

    def queue(self, closed: ClosedBatch) -> None:
        self.closed.append(closed)
        self.closed.sort(key=lambda window: (window.key.window, window.known.task.version))


def reports_of(batch: Batch) -> dict[bytes, bytes]:
    """host_id -> report_id."""
    rows = batch.entries
    return dict(zip(rows["host_id"].tolist(), rows["report_id"].tolist(), strict=True))


def resume_window(signed: SignedBatch, known: KnownTask, stored: StoreFrozen) -> OpenWindow:
    """An empty window that takes from the log exactly what the stored batch names."""
    return OpenWindow(
        known.d,
        known.task.scheme,
        expected=reports_of(signed.batch),
        rejections=dict(stored.rejections),
        resumed=True,
    )
