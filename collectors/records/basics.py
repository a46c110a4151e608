"""Why something was not measured, which process it was, and quantiles without SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class FailureKind(StrEnum):
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
    IMPLAUSIBLE = "implausible"
    """What was read cannot be: a sensor or a driver that is broken."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A field without a value: never a zero, never the value of an earlier read."""

    kind: FailureKind
    reason: str


class ProcessKey(NamedTuple):
    """A process: a pid used again has another start time.

    start_ns    CLOCK_BOOTTIME. Programs give it exactly; what comes from /proc is rounded down to
                the tick of 10 ms: `proc_maps.coarse` makes the two comparable
    """

    pid: int
    start_ns: int


NORMAL: Final = 1.959964

_STUDENT: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042, 2.040,
)  # fmt: skip
"""Of Student's distribution, by degrees of freedom from 1 on."""


def student(windows: int) -> float:
    """Give the quantile where so many windows taught the spread; below 2, the normal one."""
    degrees = windows - 1
    return _STUDENT[degrees - 1] if 0 < degrees <= len(_STUDENT) else NORMAL
