"""Bins of histograms, as the catalogue names them, for people."""

from __future__ import annotations

import re
from typing import Final

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
