"""Why something that could be measured was not: never a zero in its place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GapKind(StrEnum):
    """Why a field has no value; also the counter's label."""

    UNSUPPORTED = "unsupported"
    """This device, driver or mode does not have the field."""
    NO_PERMISSION = "no_permission"
    UNPLUGGED = "unplugged"
    """The device fell off the bus or needs a reset."""
    TIMED_OUT = "timed_out"
    """The driver did not answer in time; the device is left alone for a while."""
    LEFT_ALONE = "left_alone"
    """It was not asked: the driver did not answer a short while ago, or is starting."""
    NOT_YET = "not_yet"
    """It is told between two looks, and this was the first."""
    DAMAGED = "damaged"
    """The device met an error that it could not correct, or gave back other bytes than it got."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Gap:
    """A field without a value: never a zero, never the value of an earlier read."""

    kind: GapKind
    reason: str
