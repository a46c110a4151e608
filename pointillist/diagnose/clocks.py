"""When something was found: by the wall clock, or since a recording began."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class BoottimeReader:
    """Reads CLOCK_BOOTTIME for a person, for JSON and for the name of a file.

    zero_ns    CLOCK_BOOTTIME of its zero
    is_unix    its zero is 1970 UTC; else the beginning of a recording
    name       of the recording; "" where findings come from a journal or a live host
    recorded   when it was recorded, as it says itself; "" where it does not
    """

    zero_ns: int
    is_unix: bool
    name: str = ""
    recorded: str = ""

    def seconds(self, boottime_ns: int) -> float:
        """Seconds since its zero, to the millisecond."""
        return round((boottime_ns - self.zero_ns) / _NS, 3)

    def text(self, boottime_ns: int) -> str:
        """Say it to a person: a date, or `18.0 s`."""
        if self.is_unix:
            return f"{self._date(boottime_ns):%Y-%m-%d %H:%M:%SZ}"
        return f"{self.seconds(boottime_ns):.1f} s"

    def short(self, boottime_ns: int) -> str:
        """Say it beside a time that is told in full."""
        return f"{self._date(boottime_ns):%H:%M:%SZ}" if self.is_unix else self.text(boottime_ns)

    def column(self, boottime_ns: int) -> str:
        """The same at the beginning of a line, where times stand below each other."""
        return f"{self.text(boottime_ns):>8}"

    def stamp(self, boottime_ns: int) -> str:
        """Say it in the name of a file, so that names sort by time."""
        if self.is_unix:
            return f"{self._date(boottime_ns):%Y%m%dT%H%M%SZ}"
        return f"{self.seconds(boottime_ns):06.1f}s"

    def _date(self, boottime_ns: int) -> datetime:
        return datetime.fromtimestamp((boottime_ns - self.zero_ns) / _NS, UTC)


def unix_clock(offset_ns: int) -> BoottimeReader:
    """Read times as dates; offset_ns: Unix time less CLOCK_BOOTTIME."""
    return BoottimeReader(-offset_ns, is_unix=True)


def recording_clock(start_ns: int, name: str = "", recorded: str = "") -> BoottimeReader:
    """Read times as seconds since a recording began."""
    return BoottimeReader(start_ns, is_unix=False, name=name, recorded=recorded)
