"""What goes into and comes out of the Leader's state machine.

Effects are carried out in their order: what one stores is durable before the next begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aggregator.protocol.epochs import AdmittedEpoch
from aggregator.protocol.interfaces import BatchKey, BatchReply, ReleaseReply, RosterSeen, TaskSeen
from aggregator.protocol.released import ReleasedWindow, SuppressedWindow
from transport.interface import Record, TopicPartition
from wire.task import Task

# Events of the Leader


@dataclass(frozen=True, slots=True)
class EpochsArrived:
    """Records of the epoch topic, values enveloped, in log order."""

    records: Sequence[Record]
    now_s: float


@dataclass(frozen=True, slots=True)
class ReportsArrived:
    """Records of the report topic, values enveloped, in log order."""

    records: Sequence[Record]
    now_s: float


@dataclass(frozen=True, slots=True)
class LogChanged:
    """A topic begins anew with the next records: offsets that were read of it name nothing now."""

    topic: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed.

    lag     records of the log that are left to read; None while the log does not answer
    """

    now_s: float
    lag: int | None = 0


@dataclass(frozen=True, slots=True)
class HelperAnswer:
    """What came back of a call; `reply` is None when the Helper was away or answered nonsense."""

    key: BatchKey
    reply: BatchReply | ReleaseReply | None
    now_s: float


LeaderEvent = (
    TaskSeen | RosterSeen | EpochsArrived | ReportsArrived | LogChanged | Tick | HelperAnswer
)


# Effects of the Leader


@dataclass(frozen=True, slots=True)
class KeepEpochs:
    """Store verified epochs, to hand them to the Helper later, and mark twins dead."""

    epochs: Sequence[AdmittedEpoch]


@dataclass(frozen=True, slots=True)
class StoreTask:
    """Keep when a task was accepted: from then on its windows must end."""

    task_id: bytes
    accepted_s: float


@dataclass(frozen=True, slots=True)
class StoreFrozen:
    """Store a batch's bytes before they are sent, so that the same bytes are sent again.

    A restart takes it over from the durable state as it was stored.
    """

    key: BatchKey
    series: str
    signed_batch: bytes
    closed_s: float
    rejections: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CallHelper:
    """Send a stored batch; the reply comes back as an event.

    wanted   epochs to hand over before the batch, as the Helper named them; None on a first call
    """

    key: BatchKey
    signed_batch: bytes
    wanted: Sequence[bytes] | None = None


@dataclass(frozen=True, slots=True)
class StoreRelease:
    """Hand a release to the store, then append it to the transcript.

    entry    SignedRelease bytes, the Helper's signature still zeros
    vector   the released vector, d u32 little-endian, kept until the Helper has signed
    """

    key: BatchKey
    released: ReleasedWindow
    entry: bytes
    share_bytes: bytes
    vector: bytes


@dataclass(frozen=True, slots=True)
class StoreSuppressed:
    """Settle a window without a release; `hosts` of at least n_min had reported.

    task         None when the window's task is gone for good
    detail       more about the reason, for the log; no measurement
    share_bytes  the signed share under which the sum came out wrong: evidence for the transcript
    """

    key: BatchKey
    series: str
    task: Task | None
    reason: str
    now_s: float
    hosts: int
    detail: str = ""
    share_bytes: bytes | None = None

    def public(self) -> SuppressedWindow:
        task = self.task
        return SuppressedWindow(
            self.series,
            self.key.cohort,
            self.key.window,
            None if task is None else task.window_s,
            None if task is None else task.version,
            self.reason,
            self.hosts,
            None if task is None else task.n_min,
            self.now_s,
            "" if task is None else task.domain,
        )


@dataclass(frozen=True, slots=True)
class CallCountersign:
    key: BatchKey
    entry: bytes
    vector: bytes


@dataclass(frozen=True, slots=True)
class StoreCountersigned:
    """Keep the release under both signatures and forget the vector."""

    key: BatchKey
    entry: bytes


@dataclass(frozen=True, slots=True)
class StoreUnsigned:
    """Keep a release without the Helper's signature, and why, and forget the vector."""

    key: BatchKey
    reason: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit the log's offsets of settled windows: partition -> next offset."""

    offsets: Mapping[TopicPartition, int]


LeaderEffect = (
    KeepEpochs
    | StoreTask
    | StoreFrozen
    | CallHelper
    | StoreRelease
    | StoreSuppressed
    | CallCountersign
    | StoreCountersigned
    | StoreUnsigned
    | CommitOffsets
)

Settled = StoreRelease | StoreSuppressed
"""How a window ended."""
