"""What the participant is told (events) and what it asks its runtime to do (effects)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from edge_agent.ledger import ledger_records
from wire.epoch import KeyAnnouncement
from wire.fields import TaskId
from wire.rejection import Reason
from wire.task import Task

Token = NewType("Token", int)
"""Names one commit until its runtime reports it committed or failed."""


class Withheld(StrEnum):
    """Why a host publishes nothing for a window, or opens no epoch: the counter's label.

    `window_late`: its lateness is over, as on a host that slept; the Leader has closed it.
    """

    BUDGET = "budget"
    FORGOTTEN = "forgotten"
    WINDOW_SPENT = "window_spent"
    WINDOW_OPEN = "window_open"
    WINDOW_MISALIGNED = "window_misaligned"
    WINDOW_LATE = "window_late"
    TASK_UNKNOWN = "task_unknown"
    TASK_EXPIRED = "task_expired"
    NOT_ROSTERED = "not_rostered"
    NO_ROSTER = "no_roster"
    ROSTER_SMALL = "roster_small"
    ROSTER_LARGE = "roster_large"
    OPERATOR_LARGE = "operator_large"
    NO_HPKE_KEY = "no_hpke_key"
    NO_EPOCH = "no_epoch"
    EPOCH_RATE = "epoch_rate"
    RECOVERING = "recovering"
    RECORD_TOO_LARGE = "record_too_large"
    SPOOL_FULL = "spool_full"
    DISK_FULL = "disk_full"
    CLOCK_SET_BACK = "clock_set_back"
    NOISE_FAULT = "noise_fault"


# Events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskReceived:
    """Bytes of a signed task, as they came out of their envelope."""

    signed: bytes
    now_s: int


@dataclass(frozen=True, slots=True)
class RosterReceived:
    """Bytes of a signed roster, as they came out of their envelope."""

    signed: bytes
    now_s: int


@dataclass(frozen=True, slots=True)
class KeysAnnounced:
    """HPKE keys that parties announced; only pinned parties' valid signatures count."""

    announcements: tuple[KeyAnnouncement, ...]
    now_s: int


@dataclass(frozen=True, slots=True)
class EpochDue:
    """Open what epochs are due; may be said as often as one likes."""

    now_s: int


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """A window has ended: int64[hosts, k] in base units, bool[hosts] of who is up."""

    task_id: TaskId
    window_start_s: int
    rows: NDArray[np.int64] = field(repr=False)
    present: NDArray[np.bool_] = field(repr=False)
    now_s: int


@dataclass(frozen=True, slots=True)
class LedgerCommitted:
    """A commit is durable; `spool_ids` name its records in their order."""

    token: Token
    spool_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """A commit was rolled back: nothing of it is durable, nothing was spent."""

    token: Token
    why: Withheld


Event = (
    TaskReceived
    | RosterReceived
    | KeysAnnounced
    | EpochDue
    | WindowClosed
    | LedgerCommitted
    | CommitFailed
)

# Effects ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitEpochs:
    """Count these epochs and spool their records in one durable transaction."""

    token: Token
    openings: Sequence[ledger_records.EpochOpening]
    records: Sequence[ledger_records.SealedRecord] = field(repr=False)
    now_s: int


@dataclass(frozen=True, slots=True)
class CommitSealed:
    """Spend windows, spool reports, forget what ended before keep_from_s, in one commit."""

    token: Token
    entries: Sequence[ledger_records.HostEntry]
    records: Sequence[ledger_records.SealedRecord] = field(repr=False)
    now_s: int
    keep_from_s: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Send these records, each at its `publish_at_ms` or as soon after it as possible."""

    spool_ids: tuple[int, ...]
    records: Sequence[ledger_records.SealedRecord] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RememberRoster:
    """Record what a roster says of these hosts: the log keeps the newest roster alone."""

    known: ledger_records.KnownRoster


@dataclass(frozen=True, slots=True)
class TaskAccepted:
    """A task passed every check: record its version, that none goes back, and close its windows."""

    task_id: TaskId
    task: Task
    known: ledger_records.KnownSeries
    signed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SignedTimeSeen:
    """A pinned aggregator has signed this time: the clock is never before it."""

    signed_time_s: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """So many hosts publish nothing (Withheld), or a task, roster or key was refused (Reason)."""

    reason: Withheld | Reason
    hosts: int
    detail: str


Effect = (
    CommitEpochs | CommitSealed | Publish | RememberRoster | TaskAccepted | SignedTimeSeen | Refuse
)
