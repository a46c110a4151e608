"""How numbers with errors are said: no more digits than the error leaves, never mere noise."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts, and how it is written.

    factor    the number is written times this: 100 for percent of a share
    suffix    what stands after it, its space included
    decimals  at most
    between   what lies between `low` and `high` of a number
    """

    name: str
    factor: float = 1.0
    suffix: str = ""
    decimals: int = 2
    between: str = "95 % interval"


SHARE: Final = Unit("share", 100.0, " %")
POINTS: Final = Unit("points", 100.0, " points")
HOSTS: Final = Unit("hosts", decimals=0)
GPU_HOURS: Final = Unit("GPU hours", suffix=" GPU h", decimals=1)


@dataclass(frozen=True, slots=True)
class Number:
    """A released number, or why there is none.

    value           None where nothing is known
    low, high       of its 95 % interval, or of what else its unit says; None: it has no error
    told            whether it is significant; one that is not is drawn as mostly noise
    reason          why it is suppressed, in words
    coverage        of the windows that it is made of: released by expected, 0 to 1
    """

    value: float | None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    told: bool = True
    reason: str | None = None
    coverage: float | None = None

    @property
    def known(self) -> bool:
        return self.value is not None and math.isfinite(self.value)

    @property
    def exact(self) -> bool:
        """Whether it has no error: it was counted, not released."""
        return self.low is None and self.high is None

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval; the value twice where none is known."""
        at = self.value if self.value is not None else math.nan
        low = self.low if self.low is not None else at
        high = self.high if self.high is not None else at
        return low, high


ABSENT = "–"
_UNITS = re.compile(r"(?<=\d) (%|°C|W|GB|s|min|h|days|weeks|GPU h|[A-Z]{3})(?!\w)")


def decimals(half_width: float | None, unit: Unit) -> int:
    """Give how many decimals an interval of this half width, in written units, leaves."""
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        return min(unit.decimals, 1)
    return max(0, min(unit.decimals, math.ceil(-math.log10(half_width))))


def places_of(axis: Sequence[float], unit: Unit) -> int:
    """Give how many decimals the numbers of an axis need."""
    step = (axis[1] - axis[0]) * unit.factor if len(axis) > 1 else 1.0
    return 0 if step >= 1 else 1 if step >= 0.1 else 2


def number_said(number: float, unit: Unit, places: int = 0, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    text = f"{number * unit.factor:{sign},.{places}f}".replace("-", "−")
    # A rounded zero has no side.
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("−+") if number else "0"
    return f"{text}{unit.suffix}"


def value_said(number: Number, unit: Unit, *, signed: bool = False) -> str:
    """Say a number; one that is not significant as less than it can be.

    signed    a difference: not significant is said with its interval's larger end
    """
    if not number.known or number.value is None:
        return number.reason or ABSENT
    low, high = number.interval
    places = decimals((high - low) / 2 * unit.factor, unit)
    if number.told:
        return number_said(number.value, unit, places, signed=signed)
    most = max(abs(low), abs(high)) if signed else max(high, 0.0)
    return f"{'within ±' if signed else 'under '}{number_said(most, unit, places)}"


def interval_said(number: Number, unit: Unit, *, signed: bool = False) -> str:
    """Say a 95 % interval: 33.9 to 34.3 %."""
    low, high = number.interval
    if not number.known or number.exact or not (math.isfinite(low) and math.isfinite(high)):
        return ABSENT
    places = decimals((high - low) / 2 * unit.factor, unit)
    bare = replace(unit, suffix="")
    return (
        f"{number_said(low, bare, places, signed=signed)} to "
        f"{number_said(high, unit, places, signed=signed)}"
    )


def number_in_full(name: str, number: Number, unit: Unit, *, signed: bool = False) -> str:
    """Say a named number with all that is known of it, for who points at it or hears it."""
    parts = [f"{name}: {value_said(number, unit, signed=signed)}"]
    if number.known and not number.exact:
        parts.append(f"{unit.between} {interval_said(number, unit, signed=signed)}")
    if number.standard_error is not None and math.isfinite(number.standard_error):
        places = unit.decimals + 1
        parts.append(f"standard error {number_said(number.standard_error, unit, places)}")
    if number.known and not number.told:
        parts.append("mostly noise")
    if number.coverage is not None and math.isfinite(number.coverage):
        parts.append(f"{100 * number.coverage:.0f} % of its windows were released")
    return "; ".join(parts)


def kept_together(text: str) -> str:
    """Keep each unit on the line of its number."""
    return _UNITS.sub(lambda unit: f" {unit[1]}".replace(" ", "\u00a0"), text)


def counted(count: int, noun: str) -> str:
    """Count things: 1 window, 2 windows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Join names: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def plain(name: object) -> str:
    """Write a name of the catalogue for people: `llm_inference` as llm inference."""
    return str(name).replace("_", " ")


_BIN: Final = re.compile(r"(2\^)?(\d{1,6})\.\.(?:2\^)?(\d{1,6})? (\w+)")
_LARGER: Final = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")),
}
_MOST_POWER: Final = 63
_SIGNS: Final = {"percent": "%", "celsius": "°C", "watt": "W", "bytes": "B"}


def bin_low(name: str) -> float:
    """Give the lower end of a bin; 0 for what is none."""
    ends = _ends(name)
    return ends[0] if ends else 0.0


def bin_said(name: str) -> str:
    """Write a bin: `2^12..2^13 ns` as 4.1–8.2 µs; what is none as it stands."""
    ends = _ends(name)
    if ends is None:
        return name
    low, high, unit = ends
    by, sign = next(
        (larger for larger in _LARGER.get(unit, ()) if low >= larger[0]),
        (1.0, _SIGNS.get(unit, unit)),
    )
    if high is None:
        return f"{_said(low / by)} {sign} and more"
    return f"{_said(low / by)}–{_said(high / by)} {sign}"


def _ends(name: str) -> tuple[float, float | None, str] | None:
    found = _BIN.fullmatch(name)
    if found is None or (found[1] and max(int(found[2]), int(found[3] or 0)) > _MOST_POWER):
        return None
    low, high = (
        None if end is None else float(2 ** int(end) if found[1] else int(end))
        for end in (found[2], found[3])
    )
    return low or 0.0, high, found[4]


def _said(number: float) -> str:
    return f"{number:.1f}" if number < 10 and number % 1 else f"{number:,.0f}"
