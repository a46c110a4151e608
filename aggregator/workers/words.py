"""What a worker of the Leader and its coordinator say to each other.

A worker takes reports of some partitions of the log into windows and names their hosts; the
coordinator merges the names, freezes batches, and asks for the sums of the hosts that count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aggregator.protocol.answers import HOST_ID_BYTES, BatchKey
from aggregator.protocol.known_epochs import KnownEpoch
from wire.batch import ENTRY

CLAIM_BYTES: Final = 16
NAME_BYTES: Final = 32
"""Of an epoch: host_id || epoch_id; of a report that a batch names: host_id || report_id."""
WORD_BYTES: Final = 4 << 20
"""One word says so much of a kind, and more waits for the next."""

Place = tuple[BatchKey, int]
"""A window, and a partition of its reports."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One reading of a partition, from the group's commit on; `number` is drawn anew for each."""

    partition: int
    number: bytes


@dataclass(frozen=True, slots=True)
class NamedHosts:
    """Hosts that a worker admitted to a window, in log order; none: a report named the window.

    entries     72 B of a batch entry for each
    late_s      when the last of them was received, if all came after the window's lateness
    """

    key: BatchKey
    claim: Claim
    entries: bytes
    late_s: float | None

    def each(self) -> list[bytes]:
        """The entries one by one."""
        size = ENTRY.itemsize
        return [self.entries[at : at + size] for at in range(0, len(self.entries), size)]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Reports of a window that were refused since the last word, by reason."""

    key: BatchKey
    claim: Claim
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PartitionSum:
    """The sum of the hosts that the coordinator named: words of 4 B (8 B in `local`), as sealed."""

    key: BatchKey
    claim: Claim
    hosts: int
    vector: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Word:
    """What a worker says in one exchange; but for claims and lag, what is new since the last.

    claims      all that it holds
    lag         records of its partitions that are left to read; None while its log is away
    appended_s  when records that it read were appended, seconds; of a second, one
    rejected    reports refused, by reason, whether or not a window is known
    wanted      names of epochs that reports wait for; each is answered, known or not
    dropped     names of epochs that it no longer waits for
    """

    claims: Sequence[Claim] = ()
    lag: int | None = 0
    appended_s: Sequence[float] = ()
    named: Sequence[NamedHosts] = ()
    refusals: Sequence[Refusals] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    wanted: Sequence[bytes] = ()
    dropped: Sequence[bytes] = ()
    sums: Sequence[PartitionSum] = ()


# What the coordinator says, in its order.


@dataclass(frozen=True, slots=True)
class SignedTask:
    """A task under both signatures."""

    content: bytes


@dataclass(frozen=True, slots=True)
class SignedRoster:
    """A roster under both signatures."""

    content: bytes


@dataclass(frozen=True, slots=True)
class OpenedEpoch:
    """An epoch that the coordinator verified and opened; `key` is K_L, absent in a dead one."""

    host_id: bytes
    epoch_id: bytes
    epoch_hash: bytes
    not_before: int
    not_after: int
    ledger_ctr: int
    dead: bool
    key: bytes | None = field(default=None, repr=False)

    @property
    def known(self) -> KnownEpoch:
        """The epoch as readers look it up."""
        return KnownEpoch(
            *(self.host_id, self.epoch_id, self.epoch_hash),
            *(self.not_before, self.not_after, self.ledger_ctr),
            *(self.dead, self.key),
        )


@dataclass(frozen=True, slots=True)
class EpochUnknown:
    """An epoch that has not come: reports of it may be parked, it is given when it comes."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A frozen window that a new claim has to gather again.

    reports     host_id || report_id of each report that may lie in its partition
    """

    key: BatchKey
    partition: int
    reports: bytes

    @property
    def named(self) -> dict[bytes, bytes]:
        """host_id -> report_id."""
        names = self.reports
        return {
            names[at : at + HOST_ID_BYTES]: names[at + HOST_ID_BYTES : at + NAME_BYTES]
            for at in range(0, len(names), NAME_BYTES)
        }


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim counts from here on: what it has to gather again was said before."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another claim of the same partition counts."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Frozen:
    """A window takes nothing more."""

    key: BatchKey


@dataclass(frozen=True, slots=True)
class SumWanted:
    """The sum of these hosts is asked for, host_id each, all named by this or an earlier claim."""

    key: BatchKey
    claim: Claim
    hosts: bytes


@dataclass(frozen=True, slots=True)
class WindowEnded:
    """A window has ended, durably; reports of it may come until `until_s`."""

    key: BatchKey
    until_s: int


Order = (
    SignedTask
    | SignedRoster
    | OpenedEpoch
    | EpochUnknown
    | Rebuild
    | Granted
    | Superseded
    | Frozen
    | SumWanted
    | WindowEnded
)
