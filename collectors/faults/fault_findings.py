"""What a look at the hardware finds: counters, states, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from collectors.kernel_files import Tree
from collectors.records.gap import Gap


@dataclass(frozen=True, slots=True)
class Count:
    """A counter of errors that the kernel or the device keeps.

    name       what it counts: `memory_uncorrected`, ...
    subject    of which device: `mc0`, `0000:1b:00.0`, ...
    value      errors so far, >= 0
    cell       class of the catalogue's hardware faults, or None: counted here, never a fault
    per_day    new errors a day that are no fault yet; 0: the first is one
    """

    name: str
    subject: str
    value: int
    cell: str | None
    per_day: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """How a device stands.

    bad         it is broken now
    detail      the device's own words
    from_start  a fault also where it stood before the agent began; else it must have been seen good
    """

    name: str
    subject: str
    cell: str
    bad: bool
    detail: str
    from_start: bool = True


@dataclass(frozen=True, slots=True)
class FailedReading:
    """A reading that failed: a gap and a count, never a zero."""

    name: str
    subject: str
    gap: Gap


UNLISTED = "folder"
"""The name of a `FailedReading` of a whole folder: what is not found in it may be there."""

Finding = Count | State | FailedReading
Probe = Callable[[Tree], Iterator[Finding]]
