"""The chain of what a Helper answered and signed, as a witness outside its machine keeps it."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from . import labels
from .fields import MAX_COUNTER, NO_SIGNATURE, need_label, need_length, need_range, need_time
from .rejection import Reason, ReportRejected

FIRST_LINK_PREV: Final = bytes(32)
_LINK = struct.Struct(">16s32sQ32sQB32s")
_ASK = struct.Struct(">16s32s32s32s")
_HEAD = struct.Struct(">16s32s32s32sQ32sQ")
NONCE_BYTES: Final = 32
ASK_BYTES: Final = (_ASK.size + 64, _ASK.size + _LINK.size + 64)
"""Of a question for the head, and of one with a link."""
HEAD_BYTES: Final = _HEAD.size + 64


class LinkKind(IntEnum):
    ANSWER = 1
    RELEASE = 2


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Where a chain stands.

    sequence   links so far; 0 for a chain that has none
    hash       32 B, of the last link; zeros for a chain that has none
    closed_s   the latest end of a window answered so far, seconds
    """

    sequence: int
    hash: bytes
    closed_s: int


NO_LINKS: Final = ChainHead(0, FIRST_LINK_PREV, 0)


@dataclass(frozen=True, slots=True)
class ChainLink:
    """plst1/link || helper_pk32 || sequence8 || prev32 || closed8 || kind1 || item32.

    sequence   from 1, without gaps
    prev       hash of the link before; zeros for the first
    closed_s   the latest end of a window answered by then, seconds; it never falls
    item       `answer_item` of an answer, the hash of an unsigned release
    """

    helper_pk: bytes
    sequence: int
    prev: bytes
    closed_s: int
    kind: LinkKind
    item: bytes

    def encode(self) -> bytes:
        return _LINK.pack(
            *(labels.LINK, self.helper_pk, self.sequence, self.prev, self.closed_s),
            *(self.kind, self.item),
        )

    def hash(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()

    def head(self) -> ChainHead:
        return ChainHead(self.sequence, self.hash(), self.closed_s)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        need_length(data, _LINK.size, "a link")
        got, helper_pk, sequence, prev, closed_s, kind, item = _LINK.unpack(data)
        need_label(got, labels.LINK)
        need_range(sequence, 1, MAX_COUNTER, "sequence")
        need_time(closed_s, "closed")
        need_range(kind, LinkKind.ANSWER, LinkKind.RELEASE, "kind")
        if (sequence == 1) != (prev == FIRST_LINK_PREV):
            raise ReportRejected(Reason.FIELD, "prev of zeros in link 1 alone", sequence)
        return cls(helper_pk, sequence, prev, closed_s, LinkKind(kind), item)


def answer_item(batch_hash: bytes, bitmap: bytes) -> bytes:
    """Hash an answer: the batch, and which of its hosts were accepted, as the share has them."""
    return hashlib.sha256(batch_hash + bitmap).digest()


@dataclass(frozen=True, slots=True)
class WitnessAsk:
    """plst1/ask || witness_pk32 || helper_pk32 || nonce32, a link or nothing, Ed25519.

    nonce      of the Helper's choice, never used before
    link       to be appended; None asks for the head alone
    signature  the Helper's
    """

    witness_pk: bytes
    helper_pk: bytes
    nonce: bytes
    link: ChainLink | None
    signature: bytes = NO_SIGNATURE

    def unsigned(self) -> bytes:
        head = _ASK.pack(labels.ASK, self.witness_pk, self.helper_pk, self.nonce)
        return head if self.link is None else head + self.link.encode()

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) not in ASK_BYTES:
            raise ReportRejected(Reason.LENGTH, f"{ASK_BYTES[0]} or {ASK_BYTES[1]} B", len(data))
        got, witness_pk, helper_pk, nonce = _ASK.unpack_from(data)
        need_label(got, labels.ASK)
        rest = data[_ASK.size : -64]
        link = ChainLink.decode(rest) if rest else None
        if link is not None and link.helper_pk != helper_pk:
            raise ReportRejected(Reason.FIELD, "a link of the Helper that asks", "another's")
        return cls(witness_pk, helper_pk, nonce, link, data[-64:])


@dataclass(frozen=True, slots=True)
class WitnessHead:
    """plst1/head || witness_pk32 || helper_pk32 || nonce32 || sequence8 || hash32 || closed8.

    nonce      the question's: an older answer does not pass for this one
    signature  the witness's
    """

    witness_pk: bytes
    helper_pk: bytes
    nonce: bytes
    head: ChainHead
    signature: bytes = NO_SIGNATURE

    def unsigned(self) -> bytes:
        return _HEAD.pack(
            *(labels.HEAD, self.witness_pk, self.helper_pk, self.nonce),
            *(self.head.sequence, self.head.hash, self.head.closed_s),
        )

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        need_length(data, HEAD_BYTES, "a signed head")
        got, witness_pk, helper_pk, nonce, sequence, digest, closed_s = _HEAD.unpack_from(data)
        need_label(got, labels.HEAD)
        need_range(sequence, 0, MAX_COUNTER, "sequence")
        need_time(closed_s, "closed")
        return cls(witness_pk, helper_pk, nonce, ChainHead(sequence, digest, closed_s), data[-64:])
