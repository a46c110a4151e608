"""Limits of the format, identifiers, and the checks that every decoder shares."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NewType, TypeVar

from google.protobuf.message import DecodeError, Message

from . import labels
from .rejection import Reason, ReportRejected

MIN_D: Final = 3
MAX_D: Final = 1 << 20
MAX_HOSTS: Final = 1 << 20
MAX_TIME: Final = 253_402_300_799
"""The last second of the year 9999: milliseconds typed for seconds are beyond it."""
# Counters stay below what a signed 64-bit column or a float64 can hold without loss.
MAX_COUNTER: Final = (1 << 53) - 1
TASK_BEGINS_DAYS: Final = 366
TASK_ENDS_DAYS: Final = 36_600
ROSTER_BEGINS_DAYS: Final = 56
"""How long after now a task may begin and end, and a roster come into force."""
MAX_TASK_BODY: Final = 1 << 16
MAX_ROSTER_BODY: Final = 1 << 25
MAX_JOIN_BODY: Final = 1900
MAX_VOUCHER_BODY: Final = 256
MAX_ENTRY_BODY: Final = 1 << 14
MAX_EPOCH_S: Final = 3900
KEY_ANNOUNCED_AHEAD_S: Final = 12 * 3600
"""An aggregator announces a sealing key no longer before it comes into force."""


class Scheme(StrEnum):
    """How hosts' vectors are aggregated; a field of the signed task."""

    MASKED = "masked"
    LOCAL = "local"

    @property
    def word_bytes(self) -> int:
        return 4 if self is Scheme.MASKED else 8


def need_length(data: bytes, length: int, what: str) -> None:
    if len(data) != length:
        raise ReportRejected(Reason.LENGTH, f"{what} of {length} bytes", len(data))


def need_label(got: bytes, want: bytes) -> None:
    """Refuse another label: another message or another version of the protocol."""
    if got != want:
        told = got[:16].rstrip(b"\0")
        named = told.isascii() and told.decode("latin-1").isprintable()
        raise ReportRejected(
            Reason.VERSION, want.rstrip(b"\0").decode(), told.decode() if named else told.hex()
        )


def need_range(value: int, low: int, high: int, what: str) -> int:
    if not low <= value <= high:
        raise ReportRejected(Reason.FIELD, f"{what} in {low}..{high}", value)
    return value


def need_time(value: int, what: str) -> int:
    return need_range(value, 0, MAX_TIME, f"{what} in seconds since 1970, not milliseconds,")


def need_within(at_s: int, now_s: float, days: int, what: str) -> None:
    """Refuse a time more than `days` after now: whoever signs or takes it would wait for ever."""
    latest_s = int(now_s) + days * DAY_S
    if at_s > latest_s:
        expected = f"{what} within {days} days from now, by {as_date(latest_s)}"
        raise ReportRejected(Reason.FIELD, expected, as_date(at_s))


def as_date(at_s: int) -> str:
    if not 0 <= at_s <= MAX_TIME:
        return str(at_s)
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%SZ}"


MILLION: Final = 1_000_000
DAY_S: Final = 86_400
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
    if len(value) != length:
        raise ReportRejected(Reason.FIELD, f"{what} of {length} bytes", len(value))
    return value


def need(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ReportRejected(Reason.FIELD, expected, got)


HostId = NewType("HostId", bytes)
EpochId = NewType("EpochId", bytes)
TaskId = NewType("TaskId", bytes)
ReportId = NewType("ReportId", bytes)
KeyId = NewType("KeyId", bytes)
HardwareId = NewType("HardwareId", bytes)
VoucherId = NewType("VoucherId", bytes)

ED25519_PUBLIC_BYTES: Final = 32
HPKE_PUBLIC_BYTES: Final = 1216
SIGNATURE_BYTES: Final = 64
NO_SIGNATURE: Final = bytes(SIGNATURE_BYTES)
NO_KEY: Final = KeyId(bytes(8))
NO_TAG: Final = bytes(16)


def host_id(ed25519_pk: bytes) -> HostId:
    """H("plst1/host" || ed25519_pk)[:16]."""
    _need(ed25519_pk, ED25519_PUBLIC_BYTES, "an Ed25519 public key")
    return HostId(hashlib.sha256(labels.HOST + ed25519_pk).digest()[:16])


def key_id(hpke_pk: bytes) -> KeyId:
    """H(hpke_pk)[:8]."""
    _need(hpke_pk, HPKE_PUBLIC_BYTES, "an HPKE public key")
    return KeyId(hashlib.sha256(hpke_pk).digest()[:8])


def task_id(signed_bytes: bytes) -> TaskId:
    """H("plst1/task" || the bytes both parties sign), that is `Signed.unsigned()`.

    Without the signatures: one body is one task, whatever signatures travel with it.
    """
    return TaskId(hashlib.sha256(labels.TASK + signed_bytes).digest())


def hardware_id(leader_pk: bytes, name: str) -> HardwareId:
    """H("plst1/hardware" || leader_pk || name)[:16]: one part of a machine, in one fleet.

    The Leader's key is the salt: rosters of two fleets cannot be joined by it.
    """
    _need(leader_pk, ED25519_PUBLIC_BYTES, "an Ed25519 public key")
    return HardwareId(hashlib.sha256(labels.HARDWARE + leader_pk + name.encode()).digest()[:16])


def voucher_id(token_pk: bytes) -> VoucherId:
    """H("plst1/voucher" || token_pk)[:16]: a token's voucher enrols one host."""
    _need(token_pk, ED25519_PUBLIC_BYTES, "an Ed25519 public key")
    return VoucherId(hashlib.sha256(labels.VOUCHER + token_pk).digest()[:16])


def _need(value: bytes, length: int, what: str) -> None:
    if len(value) != length:
        raise ValueError(f"{what} has {length} bytes, got {len(value)}")
