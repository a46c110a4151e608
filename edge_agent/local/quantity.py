"""A value with its unit as a person reads it: 4.2 s/s, 7.1 MB/s, 22,880/s."""

from __future__ import annotations

import math
from typing import Final

_LADDERS: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    "ms/s": ((1e3, " s/s"), (1.0, " ms/s")),
    "ms": ((1e3, " s"), (1.0, " ms")),
    "µs": ((1e6, " s"), (1e3, " ms"), (1.0, " µs")),
    "bytes/s": ((1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s")),
    "bytes": ((1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")),
    "1/s": ((1.0, "/s"),),
    "": ((1.0, ""),),
}
"""Units by the value from which each is used, the largest first. Decimal: 1 MB is 10^6 bytes."""
_WHOLE_FROM: Final = 100.0
_READ_AS: Final[dict[str, tuple[float, str]]] = {
    "ns/s": (1e6, "ms/s"), "us/s": (1e3, "ms/s"), "ns": (1e6, "ms"), "us": (1.0, "µs"),
    "/s": (1.0, "1/s"), "millionths": (1e4, "%"), "millionths of full scale": (1e4, "%"),
    "GPU-ms": (1e3, "GPU-s"),
}  # fmt: skip
"""Units that records have and people do not: what a value is divided by, and the unit of that."""


def read_as(unit: str) -> tuple[float, str]:
    """Give what a value is divided by to be read, and the unit that it then has."""
    return _READ_AS.get(unit, (1.0, unit))


def quantity(value: float, unit: str) -> str:
    """Say a value in the unit of its ladder that fits; three digits, thousands with commas.

    unit   as in the table of signals; one without a ladder is put behind the value
    """
    for least, name in _LADDERS.get(unit, ((1.0, f" {unit}"),)):
        if abs(value) >= least:
            return f"{number(value / least)}{name}"
    least, name = _LADDERS.get(unit, ((1.0, f" {unit}"),))[-1]
    return f"{number(value / least)}{name}"


def number(value: float) -> str:
    """Say a number with three digits at least; whole from 100, and never as a power of ten."""
    if not math.isfinite(value):
        return "?"
    if abs(value) >= _WHOLE_FROM:
        return f"{value:,.0f}"
    if value == 0 or abs(value) < 0.005:  # less than the last digit that is shown
        return "0"
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def counted(count: int, what: str) -> str:
    """Say how many: 1 picture, 2 pictures."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
