"""How numbers with errors are said: no more digits than the error leaves, never mere noise."""

from __future__ import annotations

import math
import re

from .number import Number, Unit

ABSENT = "–"
_UNITS = re.compile(r"(?<=\d) (%|°C|W|GB|s|min|h|days|weeks|GPU h|[A-Z]{3})(?!\w)")


def decimals(half_width: float | None, unit: Unit) -> int:
    """Give how many decimals an interval of this half width, in written units, leaves."""
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        return min(unit.decimals, 1)
    return max(0, min(unit.decimals, math.ceil(-math.log10(half_width))))


def number_said(number: float, unit: Unit, places: int = 0, *, signed: bool = False) -> str:
    """Write a number in its unit."""
    sign = "+" if signed else ""
    text = f"{number * unit.factor:{sign},.{places}f}".replace("-", "−")
    # A rounded zero has no side.
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("−+") if number else "0"
    return f"{text}{unit.suffix}"


def value_said(number: Number, unit: Unit, *, signed: bool = False) -> str:
    """Say a number; one that is not told from zero as less than it can be.

    signed    a difference: not told from zero is said with its interval's larger end
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
    bare = Unit(unit.name, unit.factor, "", unit.decimals)
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
