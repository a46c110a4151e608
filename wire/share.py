"""A mask share: the Helper's answer to a batch."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from . import labels
from .bounds import MAX_HOSTS, need_d, need_label, need_length
from .ids import NO_SIGNATURE
from .rejection import Reason, ReportRejected

_HEAD = struct.Struct(">16s32sI")


def share_length(n: int, d: int) -> int:
    """Bytes of an unsigned share of n hosts and d words."""
    return _HEAD.size + (n + 7) // 8 + 4 * d


@dataclass(frozen=True, slots=True, eq=False)
class Share:
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
        """Return what the Helper signs."""
        bitmap = np.packbits(self.accepted, bitorder="little").tobytes()
        head = _HEAD.pack(labels.SHARE, self.batch_hash, self.n_accepted)
        return head + bitmap + self.vector.astype("<u4", copy=False).tobytes()

    def hash(self) -> bytes:
        return hashlib.sha256(self.unsigned()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Share) and self.unsigned() == other.unsigned()

    def __hash__(self) -> int:
        return hash(self.unsigned())

    @classmethod
    def decode(cls, data: bytes, n: int, d: int) -> Self:
        """Decode the share of a batch of n hosts of a task of d words; the bytes name neither."""
        if not 1 <= n <= MAX_HOSTS:
            raise ValueError(f"n is 1..{MAX_HOSTS}, got {n}")
        need_d(d)
        need_length(data, share_length(n, d), "a share")
        got, batch_hash, n_accepted = _HEAD.unpack_from(data)
        need_label(got, labels.SHARE)
        accepted = _read_bitmap(data[_HEAD.size : len(data) - 4 * d], n)
        if int(accepted.sum()) != n_accepted:
            raise ReportRejected(Reason.FIELD, "n_acc = bits set", n_accepted)
        vector = np.frombuffer(data, dtype="<u4", offset=len(data) - 4 * d)
        return cls(batch_hash, accepted, vector.astype(np.uint32, copy=False))


@dataclass(frozen=True, slots=True)
class SignedShare:
    """A share and the Helper's signature over it."""

    share: Share
    signature: bytes = NO_SIGNATURE

    def encode(self) -> bytes:
        return self.share.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes, n: int, d: int) -> Self:
        return cls(Share.decode(data[:-64], n, d), data[-64:])


def _read_bitmap(bitmap: bytes, n: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if bits[n:].any():
        raise ReportRejected(Reason.PADDING, "zero padding bits", "a bit set")
    return bits[:n].astype(np.bool_)
