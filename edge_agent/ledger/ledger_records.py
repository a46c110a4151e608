"""What crosses the ledger's boundary: entries, sealed records, and a participant's view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from privacy.budget import Entry
from wire.roster import Plan

WEEK_S = 7 * 24 * 3600
FREEZE_S = 2 * WEEK_S
"""After a recovery no new series and no larger weight for this long."""


@dataclass(frozen=True, slots=True)
class SealedRecord:
    """Bytes ready to leave the host, the same ones at every try.

    publish_at_ms   earliest time to send, milliseconds since 1970
    expires_s       after this second nobody accepts the record any more
    """

    topic: str
    key: bytes
    value: bytes
    publish_at_ms: int
    expires_s: int


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """A sealed record with its place in the spool."""

    spool_id: int
    record: SealedRecord


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One window of one series spent by one host."""

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
    """A task series this ledger has accepted: its newest version and its weight.

    task_id     of that version; empty when only the version is known
    """

    series: str
    version: int
    weight_millionths: int
    window_s: int
    task_id: bytes = b""


@dataclass(frozen=True, slots=True)
class KnownRoster:
    """What a signed roster says of this ledger's hosts.

    plans     host_id -> its memberships, None when it is not on the roster
    crowds    (series, cohort) -> hosts, and how many of them the largest operator has
    """

    leader_pk: bytes
    helper_pk: bytes
    version: int
    effective_from: int
    plans: Mapping[bytes, Plan | None]
    crowds: Mapping[tuple[str, int], tuple[int, int]]


LONG_WINDOW_S: Final = 86_400
"""Seconds: windows below it go first when the spool fills up."""


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """Bounds of the spool; a commit that would pass one of them spends nothing.

    The last tenth is for epochs and for windows of a day and longer, which are few and say most.
    """

    max_records: int = 20_000
    max_bytes: int = 256 << 20

    @property
    def for_short_windows(self) -> SpoolLimits:
        """The bounds that a report of a window below LONG_WINDOW_S keeps to."""
        records, size_bytes = self.max_records, self.max_bytes
        return SpoolLimits(records - records // 10, size_bytes - size_bytes // 10)


@dataclass(frozen=True, slots=True)
class HostSpending:
    """What one host has spent and opened.

    epoch_ctr      the last counter used; the next epoch takes the next number
    epochs_opened  seconds at which the epochs of the last two hours were opened, ascending
    """

    host_id: bytes
    entries: tuple[Entry, ...]
    epoch_ctr: int
    epochs_opened: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a participant must know of its ledger when it starts.

    rosters          of each pair of aggregators the oldest version first
    kept_from_s      entries that ended before it are forgotten
    resume_after_s   only windows that start after it may be spent
    freeze_until_s   until then only `series` may be spent, at no more than their weight
    """

    hosts: tuple[HostSpending, ...]
    series: Mapping[str, KnownSeries] = field(default_factory=dict)
    rosters: tuple[KnownRoster, ...] = ()
    kept_from_s: int = 0
    resume_after_s: int = 0
    freeze_until_s: int = 0
