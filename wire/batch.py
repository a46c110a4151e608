"""What closes a window: the batch, the share that answers it, and the release in the chain."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from . import fields, labels
from .fields import NO_SIGNATURE, TaskId, need_label, need_length, need_range
from .rejection import Reason, ReportRejected

ENTRY: Final = np.dtype(
    [*((name, "V16") for name in ("host_id", "epoch_id", "report_id", "tag_h")), ("check", "V8")]
)
Entries = NDArray[np.void]
_HEAD = struct.Struct(">16s32sIQQI")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """plst1/batch || task_id32 || cohort4 || window8 || roster_ver8 || n4 || n x 72 bytes.

    entries  ENTRY[n], host_id strictly increasing as big-endian numbers
    check    a report's two masked check words, little-endian
    """

    task_id: TaskId
    cohort: int
    window: int
    roster_ver: int
    entries: Entries = field(repr=False)

    @property
    def n(self) -> int:
        return len(self.entries)

    def epoch_names(self) -> frozenset[bytes]:
        """host_id 16 B || epoch_id 16 B of each entry."""
        return frozenset(host + epoch for host, epoch, *_ in self.entries.tolist())

    def unsigned(self) -> bytes:
        head = _HEAD.pack(
            labels.BATCH, self.task_id, self.cohort, self.window, self.roster_ver, self.n
        )
        return head + self.entries.tobytes()

    def hash(self) -> bytes:
        return hashlib.sha256(self.unsigned()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.unsigned() == other.unsigned()

    def __hash__(self) -> int:
        return hash(self.unsigned())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) < _HEAD.size:
            raise ReportRejected(Reason.LENGTH, f"at least {_HEAD.size} bytes", len(data))
        got, task, cohort, window, roster_ver, n = _HEAD.unpack_from(data)
        need_label(got, labels.BATCH)
        need_range(n, 1, fields.MAX_HOSTS, "n")
        need_length(data, _HEAD.size + n * ENTRY.itemsize, "a batch")
        fields.need_time(window, "window")
        need_range(roster_ver, 0, fields.MAX_COUNTER, "roster_ver")
        entries: Entries = np.frombuffer(data, dtype=ENTRY, offset=_HEAD.size)
        raw = np.ascontiguousarray(entries["host_id"]).view(">u8").reshape(-1, 2)
        high, low = raw[:, 0], raw[:, 1]
        rises = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
        if not rises.all():
            raise ReportRejected(Reason.ORDER, "host_id strictly increasing", "another order")
        return cls(task, cohort, window, roster_ver, entries)


@dataclass(frozen=True, slots=True)
class SignedBatch:
    batch: Batch
    signature: bytes = NO_SIGNATURE

    def encode(self) -> bytes:
        return self.batch.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(Batch.decode(data[:-64]), data[-64:])


_SHARE_HEAD = struct.Struct(">16s32sI")


def share_length(n: int, d: int) -> int:
    """Bytes of an unsigned share of n hosts and d words."""
    return _SHARE_HEAD.size + (n + 7) // 8 + 4 * d


@dataclass(frozen=True, slots=True, eq=False)
class AggregateShare:
    """The bytes "plst1/share" || bh32 || n_acc4 || bitmap || d x u32 little-endian.

    accepted  bool[n] in batch order; bit i is byte i/8, least significant first, padding zero
    vector    uint32[d], the sum of the accepted hosts' masks, check words included
    """

    batch_hash: bytes
    accepted: NDArray[np.bool_]
    vector: NDArray[np.uint32] = field(repr=False)

    @property
    def n_accepted(self) -> int:
        return int(self.accepted.sum())

    def unsigned(self) -> bytes:
        bitmap = np.packbits(self.accepted, bitorder="little").tobytes()
        head = _SHARE_HEAD.pack(labels.SHARE, self.batch_hash, self.n_accepted)
        return head + bitmap + self.vector.astype("<u4", copy=False).tobytes()

    def hash(self) -> bytes:
        return hashlib.sha256(self.unsigned()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AggregateShare) and self.unsigned() == other.unsigned()

    def __hash__(self) -> int:
        return hash(self.unsigned())

    @classmethod
    def decode(cls, data: bytes, n: int, d: int) -> Self:
        """Decode the share of a batch of n hosts of a task of d words; the bytes name neither."""
        if not 1 <= n <= fields.MAX_HOSTS:
            raise ValueError(f"n is 1..{fields.MAX_HOSTS}, got {n}")
        need_range(d, fields.MIN_D, fields.MAX_D, "d")
        need_length(data, share_length(n, d), "a share")
        got, batch_hash, n_accepted = _SHARE_HEAD.unpack_from(data)
        need_label(got, labels.SHARE)
        bitmap = np.frombuffer(data[_SHARE_HEAD.size : len(data) - 4 * d], dtype=np.uint8)
        bits = np.unpackbits(bitmap, bitorder="little")
        if bits[n:].any():
            raise ReportRejected(Reason.PADDING, "zero padding bits", "a bit set")
        accepted = bits[:n].astype(np.bool_)
        if int(accepted.sum()) != n_accepted:
            raise ReportRejected(Reason.FIELD, "n_acc = bits set", n_accepted)
        vector = np.frombuffer(data, dtype="<u4", offset=len(data) - 4 * d)
        return cls(batch_hash, accepted, vector.astype(np.uint32, copy=False))


@dataclass(frozen=True, slots=True)
class SignedShare:
    share: AggregateShare
    signature: bytes = NO_SIGNATURE

    def encode(self) -> bytes:
        return self.share.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes, n: int, d: int) -> Self:
        return cls(AggregateShare.decode(data[:-64], n, d), data[-64:])


FIRST_PREV: Final = bytes(32)
_RELEASE = struct.Struct(">16s32s32s32s32s")


SALT_BYTES: Final = 16


def vector_hash(vector: NDArray[Any] | bytes) -> bytes:
    """Hash the released vector: d u32 little-endian, its check words included, and the salt."""
    if not isinstance(vector, bytes):
        vector = vector.astype(np.dtype("<u4")).tobytes()
    return hashlib.sha256(vector).digest()


@dataclass(frozen=True, slots=True)
class Release:
    """The bytes "plst1/release" || prev32 || bh32 || H(unsigned share) || H(released vector).

    prev  hash of the previous unsigned release of this (Leader, Helper, task_series, cohort);
          32 zeros for the first. A suppressed window is no entry.
    """

    prev: bytes
    batch_hash: bytes
    share_hash: bytes
    vector_hash: bytes

    def unsigned(self) -> bytes:
        return _RELEASE.pack(
            labels.RELEASE, self.prev, self.batch_hash, self.share_hash, self.vector_hash
        )

    def hash(self) -> bytes:
        return hashlib.sha256(self.unsigned()).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        need_length(data, _RELEASE.size, "a release")
        got, prev, batch_hash, share_hash, vector = _RELEASE.unpack(data)
        need_label(got, labels.RELEASE)
        return cls(prev, batch_hash, share_hash, vector)


@dataclass(frozen=True, slots=True)
class SignedRelease:
    """A release and both parties' signatures over it; a missing one is 64 zeros."""

    release: Release
    sig_leader: bytes = NO_SIGNATURE
    sig_helper: bytes = NO_SIGNATURE

    def encode(self) -> bytes:
        return self.release.unsigned() + self.sig_leader + self.sig_helper

    @classmethod
    def decode(cls, data: bytes) -> Self:
        need_length(data, _RELEASE.size + 128, "a signed release")
        return cls(Release.decode(data[: _RELEASE.size]), data[-128:-64], data[-64:])
