"""A release: one link of the chain that both parties keep."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from . import labels
from .bounds import need_label, need_length
from .ids import NO_SIGNATURE

FIRST_PREV: Final = bytes(32)
_BODY = struct.Struct(">16s32s32s32s32s")


def vector_hash(vector: NDArray[Any]) -> bytes:
    """Hash the released vector: d u32 little-endian, its check words included."""
    return hashlib.sha256(vector.astype(np.dtype("<u4")).tobytes()).digest()


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
        """Return what each party signs."""
        return _BODY.pack(
            labels.RELEASE, self.prev, self.batch_hash, self.share_hash, self.vector_hash
        )

    def hash(self) -> bytes:
        return hashlib.sha256(self.unsigned()).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        need_length(data, _BODY.size, "a release")
        got, prev, batch_hash, share_hash, vector = _BODY.unpack(data)
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
        need_length(data, _BODY.size + 128, "a signed release")
        return cls(Release.decode(data[: _BODY.size]), data[-128:-64], data[-64:])
