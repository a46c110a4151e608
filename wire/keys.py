"""The announcement of a party's HPKE key of the day."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from . import labels
from .bounds import MAX_TIME, need_label, need_length, need_range
from .ids import NO_SIGNATURE, KeyId, key_id
from .rejection import Reason, ReportRejected

_BODY = struct.Struct(">16s32s1216sQQ")


@dataclass(frozen=True, slots=True)
class KeyAnnouncement:
    """plst1/hpke-key || party_pk32 || hpke_pk1216 || not_before8 || not_after8 || Ed25519.

    hpke_pk  ML-KEM-768 1184 bytes, then X25519 32 bytes
    times    seconds, half-open
    """

    party_pk: bytes
    hpke_pk: bytes
    not_before: int
    not_after: int
    signature: bytes = NO_SIGNATURE

    @property
    def key_id(self) -> KeyId:
        return key_id(self.hpke_pk)

    def unsigned(self) -> bytes:
        """Return what the party signs."""
        return _BODY.pack(
            labels.HPKE_KEY, self.party_pk, self.hpke_pk, self.not_before, self.not_after
        )

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        need_length(data, _BODY.size + 64, "a key announcement")
        got, party_pk, hpke_pk, not_before, not_after = _BODY.unpack_from(data)
        need_label(got, labels.HPKE_KEY)
        need_range(not_before, 0, MAX_TIME, "not_before")
        need_range(not_after, 0, MAX_TIME, "not_after")
        if not_after <= not_before:
            raise ReportRejected(Reason.KEY_INTERVAL, "not_before < not_after", not_after)
        return cls(party_pk, hpke_pk, not_before, not_after, data[_BODY.size :])
