"""A host's epoch, and the parties' keys of the day that its fresh keys are sealed to."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, Self

from . import fields, labels
from .fields import NO_SIGNATURE, EpochId, HostId, KeyId, Scheme, need_range
from .rejection import Reason, ReportRejected

_ANNOUNCEMENT = struct.Struct(">16s32s1216sQQ")


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
        return fields.key_id(self.hpke_pk)

    def unsigned(self) -> bytes:
        return _ANNOUNCEMENT.pack(
            labels.HPKE_KEY, self.party_pk, self.hpke_pk, self.not_before, self.not_after
        )

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        fields.need_label(data[:16], labels.HPKE_KEY)  # a later suite's keys have other lengths
        fields.need_length(data, _ANNOUNCEMENT.size + 64, "a key announcement")
        _, party_pk, hpke_pk, not_before, not_after = _ANNOUNCEMENT.unpack_from(data)
        fields.need_time(not_before, "not_before")
        fields.need_time(not_after, "not_after")
        if not_after <= not_before:
            raise ReportRejected(Reason.KEY_INTERVAL, "not_before < not_after", not_after)
        return cls(party_pk, hpke_pk, not_before, not_after, data[_ANNOUNCEMENT.size :])


SEAL_BYTES: Final = 1168
_HEADER = struct.Struct(">16s16s16sQQ8s8sQQ")
HEADER_BYTES: Final = _HEADER.size
_U16 = struct.Struct(">H")
_FIXED = _HEADER.size + 2 + 2 + SEAL_BYTES + 64
EPOCH_BYTES: Final = {Scheme.MASKED: _FIXED + SEAL_BYTES, Scheme.LOCAL: _FIXED}


@dataclass(frozen=True, slots=True)
class EpochHeader:
    """E, 96 bytes: the context of both seals. Times are seconds, half-open."""

    host_id: HostId
    epoch_id: EpochId
    not_before: int
    not_after: int
    helper_kid: KeyId
    leader_kid: KeyId
    roster_ver: int
    ledger_ctr: int

    def encode(self) -> bytes:
        return _HEADER.pack(
            *(labels.EPOCH, self.host_id, self.epoch_id, self.not_before, self.not_after),
            *(self.helper_kid, self.leader_kid, self.roster_ver, self.ledger_ctr),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the first 96 bytes of `data`, which the caller has checked to be there."""
        _, host, epoch, start, end, helper, leader, roster, counter = _HEADER.unpack_from(data)
        fields.need_label(data[:16], labels.EPOCH)
        fields.need_time(end, "not_after")
        if not 0 < end - start <= fields.MAX_EPOCH_S:
            raise ReportRejected(
                Reason.EPOCH_INTERVAL, f"an epoch of 1..{fields.MAX_EPOCH_S} s", end - start
            )
        need_range(roster, 0, fields.MAX_COUNTER, "roster_ver")
        need_range(counter, 0, fields.MAX_COUNTER, "ledger_ctr")
        return cls(host, epoch, start, end, helper, leader, roster, counter)


@dataclass(frozen=True, slots=True)
class Epoch:
    """E || u16 len || seal_H || u16 len || seal_L || Ed25519 over all preceding.

    seal_h is empty, and helper_kid zero, in scheme `local` and only there.
    """

    header: EpochHeader
    seal_h: bytes
    seal_l: bytes
    signature: bytes = NO_SIGNATURE

    @property
    def scheme(self) -> Scheme:
        return Scheme.MASKED if self.seal_h else Scheme.LOCAL

    def unsigned(self) -> bytes:
        sealed_h = _U16.pack(len(self.seal_h)) + self.seal_h
        return self.header.encode() + sealed_h + _U16.pack(len(self.seal_l)) + self.seal_l

    def hash(self) -> bytes:
        """Return eh, the hash of the epoch without its signature: the context of its keys."""
        return epoch_hash(self.encode())

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        fields.need_label(data[:16], labels.EPOCH)
        if len(data) not in EPOCH_BYTES.values():
            lengths = " or ".join(str(n) for n in EPOCH_BYTES.values())
            raise ReportRejected(Reason.LENGTH, f"an epoch of {lengths} bytes", len(data))
        header = EpochHeader.decode(data)
        len_h = len(data) - _FIXED
        at = _HEADER.size
        _need_seal(data, at, len_h)
        seal_h = data[at + 2 : at + 2 + len_h]
        at += 2 + len_h
        _need_seal(data, at, SEAL_BYTES)
        if (header.helper_kid == fields.NO_KEY) != (len_h == 0):
            raise ReportRejected(Reason.FIELD, "helper_kid zero if and only if no seal_H", "other")
        end = at + 2 + SEAL_BYTES
        return cls(header, seal_h, data[at + 2 : end], data[end:])


def epoch_hash(data: bytes) -> bytes:
    """Return eh of an epoch as it came, which `Epoch.decode` has taken."""
    return hashlib.sha256(data[: -len(NO_SIGNATURE)]).digest()


def _need_seal(data: bytes, at: int, want: int) -> None:
    (got,) = _U16.unpack_from(data, at)
    if got != want:
        raise ReportRejected(Reason.LENGTH, f"a seal of {want} bytes", got)
