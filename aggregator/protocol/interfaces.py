"""What both parties' state machines take and give, and how the Leader speaks to its Helper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from wire.rejection import Reason, ReportRejected
from wire.task import CHECK_WORDS

BODY_RETENTION_S: Final = 7 * 86_400
"""Batch bodies are evidence for a week; 12,500 hosts write 1.30 GB a day. Hashes stay for ever."""

HOST_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What one answer is for: task_id 32 B, cohort, window start in seconds."""

    task_id: bytes
    cohort: int
    window: int


@dataclass(frozen=True, slots=True)
class CommittedAnswer:
    """One committed verdict; `reply` is absent only between the commit and the sum.

    bitmap       accepted hosts, bit i is byte i/8, least significant first
    rejections   reason -> hosts whose bit was cleared
    used         16 B host ids with bit 1, one after the other
    """

    key: BatchKey
    series: str
    batch_hash: bytes
    bitmap: bytes
    n_batch: int
    rejections: dict[str, int]
    committed_s: int
    body: bytes | None
    used: bytes | None
    reply: bytes | None = None
    share_hash: bytes | None = None


PROTOCOL_VERSION: Final = "plst1"


class HelperUnavailable(Exception):
    """The Helper cannot be reached or did not answer in time; the Leader tries again."""


@dataclass(frozen=True, slots=True)
class BatchReply:
    """Exactly one of a signed share, a refusal's reason or the epochs that the Helper lacks."""

    share: bytes = b""
    refusal: str = ""
    need_epochs: Sequence[bytes] = ()
    cleared: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReleaseReply:
    """The release under both signatures, or a refusal's reason."""

    entry: bytes = b""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class HelperStatus:
    version: str
    helper_pk: bytes
    clock_s: int
    roster_version: int
    batches_answered: int
    refused: Mapping[str, int]
    key_announcements: Sequence[bytes]
    takes_salt: bool = False


class HelperPort(Protocol):
    """One Helper; every method raises HelperUnavailable."""

    def submit_epochs(self, epochs: Sequence[bytes]) -> None: ...

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply: ...

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply: ...

    def status(self) -> HelperStatus: ...


Stopwatch = Callable[[str], None]
"""Charges the time since its last call to a stage: decode, authenticate, dedupe, sum, unmask."""


def no_stopwatch(stage: str) -> None:
    """Measure nothing."""


@dataclass(frozen=True, slots=True)
class TaskSeen:
    """A signed task arrived; `now_s` is the party's own clock, as everywhere here.

    at_start   it was read back after a restart
    """

    signed_bytes: bytes
    now_s: float
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class RosterSeen:
    signed_bytes: bytes


def check_sum(vector: NDArray[np.int64] | NDArray[np.uint32], n: int) -> None:
    """The check words of a sum count its hosts. Raises ReportRejected: check_sum."""
    if (vector[:CHECK_WORDS] != n).any():
        raise ReportRejected(Reason.CHECK_SUM, f"check words of {n}", "others")


Checkpoint = Callable[[str], None]
"""Told of each step before and after it happens. Production passes nothing."""


def no_checkpoint(step: str) -> None:
    """Go on."""
