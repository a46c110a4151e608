"""What crosses the ledger's boundary, and why it refuses: what was found, what recovers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from privacy.budget import Entry
from wire.roster import PlanMembership

WEEK_S = 7 * 24 * 3600
FREEZE_S = 2 * WEEK_S
"""After a recovery no new series and no larger weight for this long."""


def no_fault(_point: str) -> None:
    """Where tests stop an agent, nothing else happens."""


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """Bytes ready to leave, the same at every try: from publish_at_ms (Unix) to expires_s."""

    topic: str
    key: bytes
    value: bytes
    publish_at_ms: int
    expires_s: int


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    spool_id: int
    record: SealedRecord


@dataclass(frozen=True, slots=True)
class HostEntry:
    host_id: bytes
    entry: Entry


@dataclass(frozen=True, slots=True)
class EpochOpening:
    """One epoch of one host, counted before a byte of it leaves."""

    host_id: bytes
    ledger_ctr: int
    opened_s: int


@dataclass(frozen=True, slots=True)
class KnownSeries:
    """The newest version of a series and its weight; task_id: empty where only these are known.
    series   its key, or, of a ledger of an earlier agent, its name alone: of whichever Leader
    """

    series: str
    version: int
    weight_millionths: int
    window_s: int
    task_id: bytes = b""


class Crowd(NamedTuple):
    """How many hosts of a roster share a batch, and how many of them the largest operator has."""

    hosts: int
    largest_operator: int


@dataclass(frozen=True, slots=True)
class KnownRoster:
    """What a roster says of these hosts: plans, None of who is not on it; crowds by cohort.

    fleet   its name; "" of a roster that names none
    """

    leader_pk: bytes
    helper_pk: bytes
    version: int
    effective_from: int
    plans: Mapping[bytes, Mapping[str, PlanMembership] | None]
    crowds: Mapping[tuple[str, int], Crowd]
    fleet: str = ""


LONG_WINDOW_S: Final = 86_400
"""Seconds: windows below it go first when the spool fills up."""


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Bounds of the spool; its last tenth is for epochs and for windows of a day and longer."""

    max_records: int = 20_000
    max_bytes: int = 256 << 20

    @property
    def for_short_windows(self) -> SpoolLimits:
        """The bounds that a report of a window below LONG_WINDOW_S keeps to."""
        records, size_bytes = self.max_records, self.max_bytes
        return SpoolLimits(records - records // 10, size_bytes - size_bytes // 10)


@dataclass(frozen=True, slots=True)
class HostSpending:
    """What one host has spent: the last epoch counter used, epochs opened in the last two hours."""

    host_id: bytes
    entries: tuple[Entry, ...]
    epoch_ctr: int
    epochs_opened: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a participant must know of its ledger when it starts.
    resume_after_s   only windows that start after it may be spent
    freeze_until_s   until then only `series` may be spent, at no more than their weight
    """

    hosts: tuple[HostSpending, ...]
    series: Mapping[str, KnownSeries] = field(default_factory=dict)
    rosters: tuple[KnownRoster, ...] = ()
    kept_from_s: int = 0
    resume_after_s: int = 0
    freeze_until_s: int = 0


RECOVER = "pointillist agent ledger recover --config FILE"
RUN = "pointillist agent run --config FILE"
REKEY = "pointillist agent rekey --config FILE --key-file NEXT"


class LedgerRefused(Exception):
    """The ledger cannot vouch for what this host has spent, so nothing is published."""

    code = "ledger_refused"
    recovery = RECOVER

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}; nothing is published. To recover: {self.recovery}")
        self.found = f"{found}; nothing is published"
        self.hint = f"to recover: {self.recovery}"


class LedgerMissing(LedgerRefused):
    """The key file or the fence says that a ledger existed, and it is gone."""

    code = "ledger_missing"


class LedgerNone(LedgerRefused):
    """Neither key nor fence know of a ledger: this agent has not run yet."""

    code = "ledger_none"
    recovery = "none needed"

    def __init__(self, found: str) -> None:
        Exception.__init__(self, f"{found}; nothing was spent. To start: {RUN}")
        self.found, self.hint = f"{found}; nothing was spent", f"to start: {RUN}"


class LedgerExists(LedgerRefused):
    """A new ledger was asked for where one already lies."""

    code = "ledger_exists"
    recovery = "keep the ledger that is there, or " + RECOVER


class LedgerCorrupt(LedgerRefused):
    """SQLite or the fence found bytes that no ledger wrote."""

    code = "ledger_corrupt"


class LedgerOfOtherVersion(LedgerRefused):
    """Another version of the agent wrote the ledger: sound, and not this one's to read."""

    code = "ledger_other_version"
    recovery = "start that version again, or, to go on with this one, " + RECOVER


class LedgerRolledBack(LedgerRefused):
    """The ledger is older than its fence: an earlier copy was put back."""

    code = "ledger_rolled_back"


class LedgerCloned(LedgerRefused):
    """The ledger was made on another machine."""

    code = "ledger_cloned"
    recovery = RECOVER + ", or, after its GPUs changed, " + REKEY


class LedgerOfOthers(LedgerRefused):
    """The ledger is of another host, or of several."""

    code = "ledger_of_others"
    recovery = "name the key that the ledger belongs to, or " + RECOVER


class ClockSetBack(LedgerRefused):
    """The clock is behind what an aggregator has signed, or at a recovery what the ledger saw."""

    code = "clock_set_back"
    recovery = "set the clock right and start again: the ledger itself is sound"


class LedgerBusy(LedgerRefused):
    """Another process holds the ledger."""

    code = "ledger_busy"
    recovery = "stop the other agent of this host (it holds the lock) and start again"


class WindowSpent(LedgerRefused):
    """A window at or before the last one of its series was about to be spent again."""

    code = "window_spent"
    recovery = "none needed: the next window of the series is accepted"


class FenceUnwritable(LedgerRefused):
    """The fence did not follow a commit: nothing of it may leave before a restart repairs it."""

    code = "fence_unwritable"
    recovery = "make the key's folder writable and start the agent again"


class SpoolFull(Exception):
    """The spool has no room: nothing is spent and nothing published until it drains."""

    code = "spool_full"

    def __init__(self, records: int, size_bytes: int, max_records: int, max_bytes: int) -> None:
        super().__init__(
            f"spool would hold {records} records, {size_bytes} B, at most {max_records} records, "
            f"{max_bytes} B; it drains by itself when the transport is back"
        )


class LedgerFull(Exception):
    """The disk has no room: the transaction was rolled back, nothing was spent."""

    code = "ledger_disk_full"

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: nothing was spent; free space on the ledger's disk")
