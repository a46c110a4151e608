"""What the driver says as bytes of `reader.proto`, and back, with bounds.

The Leader holds the signing key, and the driver's process runs Spark: nothing of it is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from aggregator.protocol.interfaces import BatchKey
from wire.batch import ENTRY
from wire.fields import MAX_TIME
from wire.rejection import Reason

from . import reader_pb2 as pb
from .messages import NAME_BYTES, NamedHosts, PartitionSum, ReaderUpdate, Refusals

MAX_PARTITIONS: Final = 100_000
_ID_BYTES: Final = 32
_REASONS: Final = frozenset(reason.value for reason in Reason)


class BadMessage(ValueError):
    """Bytes that are no update of a driver; says what was expected and what came."""


def encode_update(update: ReaderUpdate) -> bytes:
    """Give the bytes of an update."""
    return pb.ReaderUpdate(
        lag=update.lag,
        partitions=update.partitions,
        # A log's own times may be anything, and an update that is refused ends the driver.
        appended_s=[min(max(0.0, at), MAX_TIME) for at in update.appended_s],
        named=[
            pb.NamedHosts(
                key=_key(named.key),
                partition=named.partition,
                entries=named.entries,
                late_s=named.late_s,
            )
            for named in update.named
        ],
        refusals=[pb.Refusals(key=_key(r.key), reasons=r.reasons) for r in update.refusals],
        rejected=update.rejected,
        wanted=b"".join(update.wanted),
        dropped=b"".join(update.dropped),
        sums=[
            pb.PartitionSum(
                key=_key(part.key), partition=part.partition, hosts=part.hosts, vector=part.vector
            )
            for part in update.sums
        ],
    ).SerializeToString()


def decode_update(raw: bytes) -> ReaderUpdate:
    """Read an update. Raises BadMessage."""
    try:
        message = pb.ReaderUpdate.FromString(raw)
    except DecodeError:
        raise BadMessage("expected an update of Spark's driver, got other bytes") from None
    return ReaderUpdate(
        message.lag if message.HasField("lag") else None,
        _at_most(message.partitions, MAX_PARTITIONS, "partitions"),
        [_seconds(at, "appended_s") for at in message.appended_s],
        [_named_of(named) for named in message.named],
        [Refusals(_key_of(r.key), _reasons(r.reasons)) for r in message.refusals],
        _reasons(message.rejected),
        _split(message.wanted, "wanted"),
        _split(message.dropped, "dropped"),
        [
            PartitionSum(_key_of(p.key), _partition(p.partition), p.hosts, p.vector)
            for p in message.sums
        ],
    )


def _named_of(named: pb.NamedHosts) -> NamedHosts:
    entries = _rows(named.entries, ENTRY.itemsize, "entries")
    late_s = _seconds(named.late_s, "late_s") if named.HasField("late_s") else None
    return NamedHosts(_key_of(named.key), _partition(named.partition), entries, late_s)


def _reasons(counts: Mapping[str, int]) -> dict[str, int]:
    for name in counts:
        if name not in _REASONS:
            raise BadMessage(f"reason: expected one of a refused report, got {name[:40]!r}")
    return dict(counts)


def _key(key: BatchKey) -> pb.WindowKey:
    return pb.WindowKey(task_id=key.task_id, cohort=key.cohort, window=key.window)


def _key_of(key: pb.WindowKey) -> BatchKey:
    if len(key.task_id) != _ID_BYTES:
        raise BadMessage(f"task_id: expected {_ID_BYTES} bytes, got {len(key.task_id)}")
    return BatchKey(key.task_id, key.cohort, _at_most(key.window, MAX_TIME, "window"))


def _rows(content: bytes, size: int, name: str) -> bytes:
    if len(content) % size:
        raise BadMessage(f"{name}: expected rows of {size} bytes, got {len(content)} bytes")
    return content


def _split(content: bytes, name: str) -> list[bytes]:
    _rows(content, NAME_BYTES, name)
    return [content[at : at + NAME_BYTES] for at in range(0, len(content), NAME_BYTES)]


def _partition(number: int) -> int:
    return _at_most(number, MAX_PARTITIONS - 1, "partition")


def _at_most(number: int, most: int, name: str) -> int:
    if number > most:
        raise BadMessage(f"{name}: expected at most {most}, got {number}")
    return number


def _seconds(number: float, name: str) -> float:
    if not 0 <= number <= MAX_TIME:  # nor is what is no number
        raise BadMessage(f"{name}: expected seconds from 0 to {MAX_TIME}, got {number}")
    return number
