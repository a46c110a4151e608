"""Envelopes: of every record, a kind and its bytes; of what both parties sign, a body."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from . import fields, labels
from .fields import NO_SIGNATURE, need_label, need_length
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected


class Kind(IntEnum):
    """What an envelope carries; the numbers of the protobuf enum."""

    TASK = 1
    ROSTER = 2
    JOIN_REQUEST = 3
    ENTRY_ANSWER = 4
    EPOCH = 5
    REPORT = 6
    BATCH = 7
    SHARE = 8
    RELEASE = 9
    KEY_ANNOUNCEMENT = 10


# Tag, kind, tag and the longest length that an envelope's core can have.
OVERHEAD_BYTES: Final = 3 + 5
_CORE_TAG = 0x12
_KIND_TAG = 0x08
_LENGTH_AT = 3
_KINDS = {kind.value: kind for kind in Kind}


def wrap(kind: Kind, core: bytes) -> bytes:
    message = pb.Envelope(kind=kind.value, core=core)  # type: ignore[arg-type]  # same numbers
    return message.SerializeToString()


def unwrap(data: bytes, max_len: int) -> tuple[Kind, bytes]:
    """Return kind and core of an envelope of at most max_len bytes.

    Only the one canonical encoding is accepted: no unknown field, no second core, no long varint;
    so it is read as what `wrap` gives, which takes a tenth of a parser's time.
    """
    kind, at = core_place(data, max_len)
    return kind, data[at:]


def core_place(data: bytes, max_len: int) -> tuple[Kind, int]:
    """Return the kind, and where the core begins: it ends with the envelope."""
    if len(data) > max_len:
        raise ReportRejected(Reason.LENGTH, f"an envelope of at most {max_len} bytes", len(data))
    at = _core_at(data)
    if not at or data[0] != _KIND_TAG or data[2] != _CORE_TAG:
        raise ReportRejected(Reason.ENVELOPE, "kind and core, nothing else", f"{len(data)} bytes")
    kind = _KINDS.get(data[1])
    if kind is None:
        raise ReportRejected(Reason.ENVELOPE, "a known kind", data[1])
    return kind, at


def _core_at(data: bytes) -> int:
    """Where the core begins; 0 unless its length is the shortest varint, and that of the rest."""
    length = 0
    for at in range(_LENGTH_AT, min(len(data), OVERHEAD_BYTES)):
        length |= (data[at] & 0x7F) << 7 * (at - _LENGTH_AT)
        if data[at] <= 0x7F:  # a zero here is a longer varint than it need be, or an empty core
            return at + 1 if data[at] and length == len(data) - at - 1 else 0
    return 0


_HEAD = struct.Struct(">16sI")
SIGNED_OVERHEAD_BYTES: Final = _HEAD.size + 128


def framed(label: bytes, body: bytes) -> bytes:
    """label16 || u32 len || body, which is what is signed."""
    return _HEAD.pack(label, len(body)) + body


def framed_body(data: bytes, label: bytes, limit: int, signatures: int, what: str) -> bytes:
    """Return the body of at most `limit` bytes of `framed`, with signatures of 64 B behind it."""
    overhead = _HEAD.size + 64 * signatures
    if not overhead <= len(data) <= overhead + limit:
        expected = f"{what} of {overhead} to {overhead + limit} bytes"
        raise ReportRejected(Reason.LENGTH, expected, len(data))
    got, length = _HEAD.unpack_from(data)
    need_label(got, label)
    need_length(data, overhead + length, what)
    return data[_HEAD.size : _HEAD.size + length]


_LIMITS = {
    labels.TASK: fields.MAX_TASK_BODY,
    labels.ROSTER: fields.MAX_ROSTER_BODY,
    labels.ENTRY_ANSWER: fields.MAX_ENTRY_BODY,
}


@dataclass(frozen=True, slots=True)
class Signed:
    """label16 || u32 len || body || sig_Leader64 || sig_Helper64, both over all before the first.

    The body is opaque here: verify `unsigned()` first, decode the body after.
    Scheme `local` has no Helper: sig_helper is zeros.
    """

    label: bytes
    body: bytes
    sig_leader: bytes = NO_SIGNATURE
    sig_helper: bytes = NO_SIGNATURE

    def unsigned(self) -> bytes:
        return framed(self.label, self.body)

    def encode(self) -> bytes:
        return self.unsigned() + self.sig_leader + self.sig_helper

    @classmethod
    def decode(cls, data: bytes, want: bytes) -> Self:
        """Decode bytes whose label must be `want` (TASK, ROSTER or ENTRY_ANSWER)."""
        body = framed_body(data, want, _LIMITS[want], 2, "a signed message")
        return cls(want, body, data[-128:-64], data[-64:])
