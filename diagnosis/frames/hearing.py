"""What a framer takes of one source's drain: its records, and its last look at devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from collectors.devices.port import DeviceReading
from collectors.records.activity import Record


class Hears(Protocol):
    """The side of a `Framer` on which records come in."""

    def take(self, records: Iterable[Record]) -> None: ...

    def look(self, readings: Iterable[DeviceReading]) -> None: ...


def hear(framer: Hears, source: object, records: Iterable[Record], now_ns: int) -> None:
    """Hand a drain on, and the look of a source that has one; a stale look is none.

    now_ns   CLOCK_BOOTTIME
    """
    framer.take(records)
    latest = getattr(source, "latest", None)
    sweep = latest(now_ns) if latest is not None else None
    if sweep is not None:
        framer.look(sweep.devices)
