"""A host's request to join the roster, and the sealed form in which it crosses the log."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from . import bounds, labels
from .bounds import MAX_JOIN_BODY, need_label, need_length
from .ids import NO_SIGNATURE, HardwareId, KeyId
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected
from .roster import GpuModels, decode_gpus, encode_gpus, hardware_ids, need_hardware
from .voucher import Voucher

_HEAD = struct.Struct(">16sI")
_OVERHEAD_BYTES: Final = _HEAD.size + 2 * 64
MAX_JOIN_BYTES: Final = _OVERHEAD_BYTES + MAX_JOIN_BODY
PADDED_BYTES: Final = 2048
"""Of every request before it is sealed: its length tells nothing of the machine."""

_SEALED_HEAD: Final = struct.Struct(">16s32s8s")
_SEAL_BYTES: Final = 1120 + PADDED_BYTES + 16
SEALED_JOIN_BYTES: Final = _SEALED_HEAD.size + _SEAL_BYTES


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """label16 || u32 len || body || two signatures of all before: the token's, the host's.

    hardware    16 B for each hardware id of the machine, rising
    voucher     of the token, signed by the host's operator
    """

    ed25519_pk: bytes
    hardware: bytes = field(repr=False)
    gpu_models: GpuModels
    voucher: Voucher
    token_signature: bytes = NO_SIGNATURE
    signature: bytes = NO_SIGNATURE

    @property
    def hardware_ids(self) -> tuple[HardwareId, ...]:
        return hardware_ids(self.hardware)

    def unsigned(self) -> bytes:
        """Return what the token and the host sign."""
        message = pb.JoinBody(
            ed25519_pk=self.ed25519_pk,
            hardware=self.hardware,
            gpu_models=encode_gpus(self.gpu_models),
            voucher=self.voucher.encode(),
        )
        encoded = message.SerializeToString(deterministic=True)
        return _HEAD.pack(labels.JOIN, len(encoded)) + encoded

    def encode(self) -> bytes:
        return self.unsigned() + self.token_signature + self.signature

    def hash(self) -> bytes:
        """Return the SHA-256 of the request, which its answer names."""
        return hashlib.sha256(self.encode()).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if not _OVERHEAD_BYTES <= len(data) <= MAX_JOIN_BYTES:
            expected = f"a join request of at most {MAX_JOIN_BYTES:,} B"
            raise ReportRejected(Reason.LENGTH, expected, len(data))
        got, length = _HEAD.unpack_from(data)
        need_label(got, labels.JOIN)
        need_length(data, length + _OVERHEAD_BYTES, "a join request")
        end = _HEAD.size + length
        message = bounds.parse(pb.JoinBody(), data[_HEAD.size : end], MAX_JOIN_BODY, "a join body")
        request = cls(
            bounds.need_bytes(message.ed25519_pk, 32, "ed25519_pk"),
            need_hardware(message.hardware),
            decode_gpus(message.gpu_models),
            Voucher.decode(message.voucher),
            data[end : end + 64],
            data[end + 64 :],
        )
        # The signatures cover the bytes as received; only their canonical form is one request.
        bounds.need(request.unsigned() == data[:end], "a canonical join body", "another encoding")
        return request

    def padded(self) -> bytes:
        """Return the bytes that are sealed: the request, and zeros up to PADDED_BYTES."""
        return self.encode().ljust(PADDED_BYTES, b"\0")

    @classmethod
    def from_padded(cls, data: bytes) -> Self:
        """Decode what was sealed."""
        need_length(data, PADDED_BYTES, "a padded join request")
        request, end = _next(data, 0)
        if any(data[end:]):
            raise ReportRejected(Reason.PADDING, "zeros behind a join request", "others")
        return cls.decode(request)


@dataclass(frozen=True, slots=True)
class SealedJoin:
    """label16 || ed25519_pk32 || leader_kid8 || HPKE of the padded request to that key.

    The first 56 bytes are the seal's info: it opens under no other host's key.
    """

    ed25519_pk: bytes
    leader_kid: KeyId
    sealed: bytes

    def info(self) -> bytes:
        return _SEALED_HEAD.pack(labels.JOIN_SEAL, self.ed25519_pk, self.leader_kid)

    def encode(self) -> bytes:
        return self.info() + self.sealed

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if data[: labels.LABEL_BYTES] == labels.JOIN:
            raise ReportRejected(
                Reason.JOIN_CLEAR, "a request sealed to the Leader", "one in clear"
            )
        need_length(data, SEALED_JOIN_BYTES, "a sealed join request")
        label, public_key, kid = _SEALED_HEAD.unpack_from(data)
        need_label(label, labels.JOIN_SEAL)
        return cls(public_key, KeyId(kid), data[_SEALED_HEAD.size :])


def split_requests(data: bytes) -> Iterator[JoinRequest]:
    """Decode requests that were written one behind the other."""
    at = 0
    while at < len(data):
        request, at = _next(data, at)
        yield JoinRequest.decode(request)


def _next(data: bytes, at: int) -> tuple[bytes, int]:
    """Cut out the bytes of the request at an offset, and give where it ends."""
    if len(data) - at < _OVERHEAD_BYTES:
        raise ReportRejected(Reason.LENGTH, "a join request", len(data) - at)
    _, length = _HEAD.unpack_from(data, at)
    end = at + min(length, MAX_JOIN_BODY) + _OVERHEAD_BYTES
    return data[at:end], end
