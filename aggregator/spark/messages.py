"""What Spark's driver and the Leader that keeps it say to each other, over one pipe.

What the Leader says goes to its own child as it is. The Leader holds the signing key, and the
driver's process runs Spark: what that says is JSON with bounds, and nothing of it is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from aggregator.protocol.epochs import KnownEpoch
from aggregator.protocol.interfaces import BatchKey, RosterSeen, TaskSeen
from transport.interface import Noted
from transport.settings.config import ConfigError, build, limited
from wire.batch import ENTRY
from wire.fields import MAX_TIME
from wire.rejection import Reason

NAME_BYTES: Final = 32
"""Of an epoch: host_id || epoch_id; of a report that a batch names: host_id || report_id."""
UPDATE_BYTES: Final = 4 << 20
"""One update says so much of a kind, and more waits for the next."""

MAX_PARTITIONS: Final = 100_000
_MAX_COUNT: Final = (1 << 32) - 1
_COUNT: Final = {"low": 0, "high": _MAX_COUNT}
_PARTITION: Final = {"low": 0, "high": MAX_PARTITIONS - 1}
_TASK_ID_BYTES: Final = 32

Place = tuple[BatchKey, int]
"""A window, and a partition of its reports."""


def _bytes(content: object) -> bytes:
    if not isinstance(content, str):
        raise ValueError(f"expected hex, got {type(content).__name__}")
    return bytes.fromhex(content)


def _read_key(table: Any) -> BatchKey:
    key = build(BatchKey, table)
    if len(key.task_id) != _TASK_ID_BYTES:
        raise ValueError(f"task_id: expected {_TASK_ID_BYTES} bytes, got {len(key.task_id)}")
    if not (0 <= key.window <= MAX_TIME and 0 <= key.cohort <= _MAX_COUNT):
        raise ValueError(f"expected a cohort and window, got {key.cohort} and {key.window}")
    return key


def _read_entries(content: object) -> bytes:
    entries = _bytes(content)
    if len(entries) % ENTRY.itemsize:
        raise ValueError(f"expected rows of {ENTRY.itemsize} bytes, got {len(entries)} bytes")
    return entries


def _read_name(content: object) -> bytes:
    name = _bytes(content)
    if len(name) != NAME_BYTES:
        raise ValueError(f"expected {NAME_BYTES} bytes, got {len(name)}")
    return name


def _up_to(most: int) -> Callable[[Any], Any]:
    def read(number: Any) -> Any:
        if number is None or (isinstance(number, int | float) and 0 <= number <= most):
            return number
        raise ValueError(f"expected a number from 0 to {most}, got another")

    return read


_COUNTED: Final = {*Reason, *(noted.value for noted in Noted)}


@dataclass(frozen=True, slots=True)
class NamedHosts:
    """Hosts that were admitted to a window, in log order; none: a report named the window.

    entries     72 B of a batch entry for each
    late_s      when the last of them was received, if all came after the window's lateness
    """

    key: BatchKey = field(metadata={"read": _read_key})
    partition: int = field(metadata=_PARTITION)
    entries: bytes = field(metadata={"read": _read_entries})
    late_s: float | None = field(metadata={"read": _up_to(MAX_TIME)})

    @property
    def rows(self) -> list[bytes]:
        """A batch entry of each host."""
        size = ENTRY.itemsize
        return [self.entries[at : at + size] for at in range(0, len(self.entries), size)]


@dataclass(frozen=True, slots=True)
class Refusals:
    """Reports of a window that were refused since the last update, by reason."""

    key: BatchKey = field(metadata={"read": _read_key})
    reasons: Mapping[str, int] = field(metadata=_COUNT)


@dataclass(frozen=True, slots=True)
class PartitionSum:
    """The sum of the hosts that the Leader named: words of 4 B (8 B in `local`), as sealed."""

    key: BatchKey = field(metadata={"read": _read_key})
    partition: int = field(metadata=_PARTITION)
    hosts: int = field(metadata=_COUNT)
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

    lag: int | None = limited(0, read=_up_to(1 << 62))
    partitions: int = limited(0, low=0, high=MAX_PARTITIONS)
    appended_s: tuple[float, ...] = limited((), low=0, high=MAX_TIME)
    named: tuple[NamedHosts, ...] = ()
    refusals: tuple[Refusals, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict, metadata=_COUNT)
    wanted: tuple[bytes, ...] = limited((), read=_read_name)
    dropped: tuple[bytes, ...] = limited((), read=_read_name)
    sums: tuple[PartitionSum, ...] = ()


def encode_update(update: ReaderUpdate) -> bytes:
    # A log's own times may be anything, and an update that is refused ends the driver.
    times = tuple(min(max(0.0, at), MAX_TIME) for at in update.appended_s)
    said = asdict(replace(update, appended_s=times))
    return json.dumps(said, default=bytes.hex).encode()


def decode_update(raw: bytes) -> ReaderUpdate:
    """Read an update. Raises ConfigError."""
    try:
        update = build(ReaderUpdate, json.loads(raw))
    except ConfigError:
        raise
    except (ValueError, OverflowError, RecursionError):  # whole numbers beyond a float's, too
        raise ConfigError("expected an update of Spark's driver, got other bytes") from None
    for counts in (update.rejected, *(refusals.reasons for refusals in update.refusals)):
        if unknown := next((name for name in counts if name not in _COUNTED), None):
            raise ConfigError(f"reason: expected one of a refused report, got {unknown[:40]!r}")
    return update


# What the Leader says, in its order. An epoch that it verified and opened it says as it knows it.


@dataclass(frozen=True, slots=True)
class EpochUnknown:
    """An epoch that has not come: reports of it may be parked, it is given when it comes."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A closed window that a new driver has to gather again.

    reports     host_id -> report_id of each report of its batch
    """

    key: BatchKey
    reports: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Closed:
    """A window takes nothing more."""

    key: BatchKey


@dataclass(frozen=True, slots=True)
class SumWanted:
    """The sum of these hosts of a partition is asked for, all named before."""

    key: BatchKey
    partition: int
    hosts: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class WindowEnded:
    """A window has ended, durably; reports of it may come until `until_s`."""

    key: BatchKey
    until_s: int


Command = (
    TaskSeen | RosterSeen | KnownEpoch | EpochUnknown | Rebuild | Closed | SumWanted | WindowEnded
)
