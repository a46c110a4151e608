"""The protobuf envelope of every record: a kind and the core's bytes."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

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


def wrap(kind: Kind, core: bytes) -> bytes:
    """Return the envelope's bytes."""
    message = pb.Envelope(kind=kind.value, core=core)  # type: ignore[arg-type]  # same numbers
    return message.SerializeToString()


def unwrap(data: bytes, max_len: int) -> tuple[Kind, bytes]:
    """Return kind and core of an envelope of at most max_len bytes.

    Only the one canonical encoding is accepted: no unknown field, no second core, no long varint.
    """
    if len(data) > max_len:
        raise ReportRejected(Reason.LENGTH, f"an envelope of at most {max_len} bytes", len(data))
    message = pb.Envelope()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ReportRejected(Reason.ENVELOPE, "a protobuf envelope", f"{len(data)} bytes") from None
    core = message.core
    try:
        kind = Kind(message.kind)
    except ValueError:
        raise ReportRejected(Reason.ENVELOPE, "a known kind", message.kind) from None
    head = bytes((_KIND_TAG, kind, _CORE_TAG)) + _varint(len(core)) if core else b""
    if len(data) != len(head) + len(core) or not data.startswith(head):
        raise ReportRejected(Reason.ENVELOPE, "kind and core, nothing else", f"{len(data)} bytes")
    return kind, core


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
