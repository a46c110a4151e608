"""Where a number lies in a drawing, and the round numbers and times that stand at its edge."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final


@dataclass(frozen=True, slots=True)
class LinearScale:
    """A range of numbers laid over a range of units.

    low, high     of the numbers, low < high
    start, end    of the units; end may be smaller, as SVG counts downwards
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, number: float) -> float:
        """Give the place of a number; what lies outside lies at the edge."""
        inside = min(max(number, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start)


def around(numbers: Iterable[float], *, zero: bool = True) -> tuple[float, float]:
    """Give a range that holds the numbers, and zero where that is asked for."""
    found = [number for number in numbers if math.isfinite(number)]
    if zero or not found:
        found.append(0.0)
    low, high = min(found), max(found)
    return (low, high) if high > low else (low, low + 1.0)


def round_numbers(low: float, high: float, most: int = 5) -> list[float]:
    """Give multiples of 1, 2 or 5 times a power of ten, `most` at most, inside a range."""
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


_SECONDS: Final = (
    1, 5, 15, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400,
    7 * 86_400, 14 * 86_400, 28 * 86_400, 91 * 86_400,
)  # fmt: skip


def round_times(first_s: float, last_s: float, most: int = 6) -> list[tuple[float, str]]:
    """Give moments to write at a time axis, each with its text, UTC.

    first_s, last_s   unix seconds
    """
    length = max(last_s - first_s, 1.0)
    step = next((s for s in _SECONDS if length / s <= most), _SECONDS[-1])
    # Days and weeks begin on a Monday, which unix time does not.
    shift = 4 * 86_400 if step >= 2 * 86_400 else 0
    at = math.ceil((first_s - shift) / step) * step + shift
    found = []
    while at <= last_s:
        found.append((float(at), _time_said(at, step)))
        at += step
    return found


def _time_said(at: float, step: int) -> str:
    when = datetime.fromtimestamp(at, UTC)
    if step >= 86_400 or (when.hour == 0 and when.minute == 0 and when.second == 0):
        return f"{when.day} {when:%b}"
    return f"{when:%H:%M}" if step >= 60 else f"{when:%H:%M:%S}"


def moment_said(at_s: float, *, seconds: bool = False) -> str:
    """Name a moment to the minute, or to the second where it has one, UTC.

    seconds   also name those of a whole minute, as in a column where another moment has some
    """
    when = datetime.fromtimestamp(at_s, UTC)
    return f"{when:%Y-%m-%d %H:%M}" + (f":{when:%S}" if seconds or when.second else "")


def length_said(seconds: float) -> str:
    """Name a length of time by its largest unit: 3 h, 5 min."""
    length = timedelta(seconds=max(round(seconds), 0))
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min"), (1, "s")):
        count = length.total_seconds() / unit
        if count >= 2 or unit == 1:
            return f"{count:.0f} {name}"
    return ""
