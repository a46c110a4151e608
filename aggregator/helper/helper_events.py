"""What goes into and comes out of the Helper's state machine; effects are carried out in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aggregator.protocol.answers import Answer, BatchKey, SeenEpoch
from aggregator.protocol.party_events import RosterSeen, TaskSeen


@dataclass(frozen=True, slots=True)
class EpochsGiven:
    """Epochs from the Leader's call, as signed by their hosts."""

    epochs: Sequence[bytes]
    now_s: float


@dataclass(frozen=True, slots=True)
class BatchGiven:
    """A signed batch; `epochs_complete` when the Leader has no further epochs to give."""

    signed_batch: bytes
    epochs_complete: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class AnswerCommitted:
    """The fenced commit of this window's verdict succeeded."""

    key: BatchKey


@dataclass(frozen=True, slots=True)
class ReleaseGiven:
    """A release under the Leader's signature and its vector, d u32 little-endian."""

    entry: bytes
    vector: bytes


HelperEvent = TaskSeen | RosterSeen | EpochsGiven | BatchGiven | AnswerCommitted | ReleaseGiven


@dataclass(frozen=True, slots=True)
class RememberEpochs:
    """Store verified epochs, dead ones too, and the hosts' largest ledger counters.

    counters   host_id -> (ledger_ctr, not_before) of the epoch with the largest counter
    """

    epochs: Sequence[SeenEpoch]
    counters: Mapping[bytes, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """Commit a verdict, fenced and linearizable; then feed `AnswerCommitted` back.

    closed_s   end of the window
    """

    answer: Answer
    closed_s: int


@dataclass(frozen=True, slots=True)
class StoreReply:
    """Store the signed share of a committed verdict."""

    key: BatchKey
    share_bytes: bytes
    share_hash: bytes


@dataclass(frozen=True, slots=True)
class ReplyShare:
    """Answer the batch; final."""

    share_bytes: bytes
    cleared: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReplyNeedEpochs:
    """Ask for epochs: host_id 16 B || epoch_id 16 B each."""

    epochs: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ReplyRefused:
    """Refuse the batch or release; consumes nothing."""

    reason: str
    cleared: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StoreChainEntry:
    """Append a release under both signatures to the Helper's chain."""

    series: str
    cohort: int
    window: int
    entry: bytes


@dataclass(frozen=True, slots=True)
class ReplyCountersigned:
    """Answer a release with both signatures on it."""

    entry: bytes


HelperEffect = (
    RememberEpochs
    | CommitAnswer
    | StoreReply
    | ReplyShare
    | ReplyNeedEpochs
    | ReplyRefused
    | StoreChainEntry
    | ReplyCountersigned
)
