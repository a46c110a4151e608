"""An operator's voucher: whoever holds a one-use token's secret is a host of this operator."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from . import bounds, labels
from .bounds import MAX_TIME, MAX_VOUCHER_BODY, need_label, need_length, need_range
from .ids import NO_SIGNATURE, VoucherId, voucher_id
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected

_HEAD = struct.Struct(">16sI")
_OVERHEAD_BYTES: Final = _HEAD.size + 64
MAX_VOUCHER_BYTES: Final = MAX_VOUCHER_BODY + _OVERHEAD_BYTES


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
        return voucher_id(self.token_pk)

    def unsigned(self) -> bytes:
        """Return what the operator signs."""
        message = pb.VoucherBody(
            leader_pk=self.leader_pk,
            token_pk=self.token_pk,
            operator=self.operator,
            plan=self.plan,
            not_after=self.not_after,
        )
        encoded = message.SerializeToString(deterministic=True)
        return _HEAD.pack(labels.VOUCHER, len(encoded)) + encoded

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if not _OVERHEAD_BYTES <= len(data) <= MAX_VOUCHER_BYTES:
            raise ReportRejected(
                Reason.LENGTH, f"a voucher of at most {MAX_VOUCHER_BYTES} bytes", len(data)
            )
        got, length = _HEAD.unpack_from(data)
        need_label(got, labels.VOUCHER)
        need_length(data, length + _OVERHEAD_BYTES, "a voucher")
        message = bounds.parse(
            pb.VoucherBody(), data[_HEAD.size : -64], MAX_VOUCHER_BODY, "a voucher body"
        )
        voucher = cls(
            bounds.need_bytes(message.leader_pk, 32, "leader_pk"),
            bounds.need_bytes(message.token_pk, 32, "token_pk"),
            bounds.need_name(message.operator, "an operator"),
            bounds.need_name(message.plan, "a plan"),
            need_range(message.not_after, 0, MAX_TIME, "not_after"),
            data[-64:],
        )
        bounds.need(voucher.unsigned() == data[:-64], "a canonical voucher", "another encoding")
        return voucher
