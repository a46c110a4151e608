"""What Spark's driver and the Leader that keeps it say to each other, over one pipe.

The driver takes reports of the log into windows and names their hosts; the Leader merges the names,
closes batches, and asks for the sums of the hosts that count. What the driver says is parsed with
bounds (`codec`); what the Leader says goes to its own child as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aggregator.protocol.epochs import KnownEpoch
from aggregator.protocol.interfaces import HOST_ID_BYTES, BatchKey
from wire.batch import ENTRY

NAME_BYTES: Final = 32
"""Of an epoch: host_id || epoch_id; of a report that a batch names: host_id || report_id."""
UPDATE_BYTES: Final = 4 << 20
"""One update says so much of a kind, and more waits for the next."""

Place = tuple[BatchKey, int]
"""A window, and a partition of its reports."""


@dataclass(frozen=True, slots=True)
class NamedHosts:
    """Hosts that were admitted to a window, in log order; none: a report named the window.

    entries     72 B of a batch entry for each
    late_s      when the last of them was received, if all came after the window's lateness
    """

    key: BatchKey
    partition: int
    entries: bytes
    late_s: float | None

    @property
    def rows(self) -> list[bytes]:
        """A batch entry of each host."""
        size = ENTRY.itemsize
        return [self.entries[at : at + size] for at in range(0, len(self.entries), size)]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Reports of a window that were refused since the last update, by reason."""

    key: BatchKey
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PartitionSum:
    """The sum of the hosts that the Leader named: words of 4 B (8 B in `local`), as sealed."""

    key: BatchKey
    partition: int
    hosts: int
    vector: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReaderUpdate:
    """What the driver says at once; but for lag and partitions, what is new since the last.

    lag         records that are left to read; None while its log is away
    partitions  of the report topic; 0 while its log is away
    appended_s  when records that it read were appended, seconds; of a second, one
    rejected    reports refused, by reason, whether or not a window is known
    wanted      names of epochs that reports wait for; each is answered, known or not
    dropped     names of epochs that it no longer waits for
    """

    lag: int | None = 0
    partitions: int = 0
    appended_s: Sequence[float] = ()
    named: Sequence[NamedHosts] = ()
    refusals: Sequence[Refusals] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    wanted: Sequence[bytes] = ()
    dropped: Sequence[bytes] = ()
    sums: Sequence[PartitionSum] = ()


# What the Leader says, in its order. An epoch that it verified and opened it says as it knows it.


@dataclass(frozen=True, slots=True)
class SignedTask:
    """A task under both signatures."""

    content: bytes


@dataclass(frozen=True, slots=True)
class SignedRoster:
    """A roster under both signatures."""

    content: bytes


@dataclass(frozen=True, slots=True)
class EpochUnknown:
    """An epoch that has not come: reports of it may be parked, it is given when it comes."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A closed window that a new driver has to gather again.

    reports     host_id || report_id of each report of its batch
    """

    key: BatchKey
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
class Closed:
    """A window takes nothing more."""

    key: BatchKey


@dataclass(frozen=True, slots=True)
class SumWanted:
    """The sum of these hosts of a partition is asked for, host_id each, all named before."""

    key: BatchKey
    partition: int
    hosts: bytes


@dataclass(frozen=True, slots=True)
class WindowEnded:
    """A window has ended, durably; reports of it may come until `until_s`."""

    key: BatchKey
    until_s: int


Command = (
    SignedTask
    | SignedRoster
    | KnownEpoch
    | EpochUnknown
    | Rebuild
    | Closed
    | SumWanted
    | WindowEnded
)
