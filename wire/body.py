"""Bounded decoding of protobuf bodies: what tasks, rosters and joins share."""

from __future__ import annotations

import re
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from .rejection import Reason, ReportRejected

MILLION: Final = 1_000_000
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_Body = TypeVar("_Body", bound=Message)


def parse(message: _Body, data: bytes, limit: int, what: str) -> _Body:
    """Fill message from at most `limit` bytes that hold known fields only."""
    if len(data) > limit:
        raise ReportRejected(Reason.LENGTH, f"{what} of at most {limit} bytes", len(data))
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ReportRejected(Reason.FIELD, f"{what} in protobuf", f"{len(data)} bytes") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise ReportRejected(Reason.FIELD, f"known fields of {what}", "an unknown field")
    return message


def need_name(text: str, what: str) -> str:
    """Refuse a name that is not 1 to 63 of a-z, 0-9, dot, underscore, hyphen; return it."""
    if NAME.fullmatch(text) is None:
        raise ReportRejected(Reason.FIELD, f"{what} like {NAME.pattern}", f"{len(text)} characters")
    return text


def need_bytes(value: bytes, length: int, what: str) -> bytes:
    """Refuse a byte field of another length; return it."""
    if len(value) != length:
        raise ReportRejected(Reason.FIELD, f"{what} of {length} bytes", len(value))
    return value


def need(holds: bool, expected: str, got: object) -> None:
    """Refuse a body in which a rule does not hold."""
    if not holds:
        raise ReportRejected(Reason.FIELD, expected, got)
