"""A host's request to join the roster under its operator's voucher, sealed to cross the log."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from . import fields, labels
from .envelope import framed, framed_body
from .fields import MAX_JOIN_BODY, MAX_VOUCHER_BODY, NO_SIGNATURE, HardwareId, KeyId, VoucherId
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected
from .roster import GpuModels, decode_gpus, encode_gpus, hardware_ids, need_hardware

_HEAD = struct.Struct(">16sI")
MAX_VOUCHER_BYTES: Final = _HEAD.size + MAX_VOUCHER_BODY + 64


@dataclass(frozen=True, slots=True)
class Voucher:
    """label16 || u32 len || body || Ed25519 of the operator's key over all before.

    leader_pk   the fleet that it is for
    token_pk    public key of the token, 32 B
    plan        of the Leader's plans, by name
    not_after   last second at which it enrols a host
    """

    leader_pk: bytes
    token_pk: bytes
    operator: str
    plan: str
    not_after: int
    signature: bytes = NO_SIGNATURE

    @property
    def voucher_id(self) -> VoucherId:
        return fields.voucher_id(self.token_pk)

    def unsigned(self) -> bytes:
        message = pb.VoucherBody(
            leader_pk=self.leader_pk,
            token_pk=self.token_pk,
            operator=self.operator,
            plan=self.plan,
            not_after=self.not_after,
        )
        return framed(labels.VOUCHER, message.SerializeToString(deterministic=True))

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = framed_body(data, labels.VOUCHER, MAX_VOUCHER_BODY, 1, "a voucher")
        message = fields.parse(pb.VoucherBody(), body, MAX_VOUCHER_BODY, "a voucher body")
        voucher = cls(
            fields.need_bytes(message.leader_pk, 32, "leader_pk"),
            fields.need_bytes(message.token_pk, 32, "token_pk"),
            fields.need_name(message.operator, "an operator"),
            fields.need_name(message.plan, "a plan"),
            fields.need_time(message.not_after, "not_after"),
            data[-64:],
        )
        fields.need(voucher.unsigned() == data[:-64], "a canonical voucher", "another encoding")
        return voucher


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
        message = pb.JoinBody(
            ed25519_pk=self.ed25519_pk,
            hardware=self.hardware,
            gpu_models=encode_gpus(self.gpu_models),
            voucher=self.voucher.encode(),
        )
        return framed(labels.JOIN, message.SerializeToString(deterministic=True))

    def encode(self) -> bytes:
        return self.unsigned() + self.token_signature + self.signature

    def hash(self) -> bytes:
        """Return the SHA-256 of the request, which its answer names."""
        return hashlib.sha256(self.encode()).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        body = framed_body(data, labels.JOIN, MAX_JOIN_BODY, 2, "a join request")
        message = fields.parse(pb.JoinBody(), body, MAX_JOIN_BODY, "a join body")
        request = cls(
            fields.need_bytes(message.ed25519_pk, 32, "ed25519_pk"),
            need_hardware(message.hardware),
            decode_gpus(message.gpu_models),
            Voucher.decode(message.voucher),
            data[-128:-64],
            data[-64:],
        )
        # The signatures cover the bytes as received; only their canonical form is one request.
        fields.need(request.unsigned() == data[:-128], "a canonical join body", "another encoding")
        return request

    def padded(self) -> bytes:
        """Return the bytes that are sealed: the request, and zeros up to PADDED_BYTES."""
        return self.encode().ljust(PADDED_BYTES, b"\0")

    @classmethod
    def from_padded(cls, data: bytes) -> Self:
        fields.need_length(data, PADDED_BYTES, "a padded join request")
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
        fields.need_length(data, SEALED_JOIN_BYTES, "a sealed join request")
        label, public_key, kid = _SEALED_HEAD.unpack_from(data)
        fields.need_label(label, labels.JOIN_SEAL)
        return cls(public_key, KeyId(kid), data[_SEALED_HEAD.size :])


def split_requests(data: bytes) -> Iterator[JoinRequest]:
    at = 0
    while at < len(data):
        request, at = _next(data, at)
        yield JoinRequest.decode(request)


def _next(data: bytes, at: int) -> tuple[bytes, int]:
    if len(data) - at < _OVERHEAD_BYTES:
        raise ReportRejected(Reason.LENGTH, "a join request", len(data) - at)
    _, length = _HEAD.unpack_from(data, at)
    end = at + min(length, MAX_JOIN_BODY) + _OVERHEAD_BYTES
    return data[at:end], end
