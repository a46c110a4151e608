"""What a framer takes of one drain: its records, and its last look at devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from collectors.devices.device_port import DeviceReading
from collectors.records.activity import Record
from collectors.rounds import Drained


class TakesDrains(Protocol):
    """The side of a `Framer` on which records come in."""

    def take(self, records: Iterable[Record]) -> None: ...

    def look(self, readings: Iterable[DeviceReading]) -> None: ...


def take_drain(framer: TakesDrains, drained: Drained) -> None:
    """Hand a drain on; a stale look is none."""
    framer.take(drained.records)
    if drained.look is not None:
        framer.look(drained.look.devices)
