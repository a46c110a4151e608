"""Limits of the format, and the checks that every decoder shares."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from .rejection import Reason, ReportRejected

MIN_D: Final = 3
MAX_D: Final = 1 << 20
MAX_HOSTS: Final = 1 << 20
# Times and counters stay below what a signed 64-bit column or a float64 can hold without loss.
MAX_TIME: Final = (1 << 48) - 1
MAX_COUNTER: Final = (1 << 53) - 1
MAX_TASK_BODY: Final = 1 << 16
MAX_ROSTER_BODY: Final = 1 << 25
MAX_JOIN_BODY: Final = 1 << 14
MAX_EPOCH_S: Final = 3900


class Scheme(StrEnum):
    """How hosts' vectors are aggregated; a field of the signed task.

    A third, with range proofs, will be another member with another box length.
    """

    MASKED = "masked"
    LOCAL = "local"

    @property
    def word_bytes(self) -> int:
        """Bytes of one coordinate inside the box."""
        return 4 if self is Scheme.MASKED else 8


def need_length(data: bytes, length: int, what: str) -> None:
    """Refuse bytes that are not exactly `length` long."""
    if len(data) != length:
        raise ReportRejected(Reason.LENGTH, f"{what} of {length} bytes", len(data))


def need_label(got: bytes, want: bytes) -> None:
    """Refuse another label: another message or another version of the protocol."""
    if got != want:
        raise ReportRejected(Reason.VERSION, want.rstrip(b"\0").decode(), got[:16].hex())


def need_range(value: int, low: int, high: int, what: str) -> int:
    """Refuse a number outside [low, high]; return it."""
    if not low <= value <= high:
        raise ReportRejected(Reason.FIELD, f"{what} in {low}..{high}", value)
    return value


def need_d(d: int) -> int:
    """Refuse a vector length outside 3..2^20; return it."""
    return need_range(d, MIN_D, MAX_D, "d")
