"""Amounts in few characters: bytes, rates, ages, spans of time."""

from __future__ import annotations


def amount(number: float) -> str:
    """Give bytes with a binary unit: `3.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def rate(number: float) -> str:
    """Give a number in at most six characters: `12,345`, `123k`, `1.2M`."""
    if abs(number) < 99_999.5:
        return f"{number:,.1f}" if abs(number) < 99.95 else f"{number:,.0f}"
    if abs(number) < 999_500:
        return f"{number / 1e3:.0f}k"
    return f"{number / 1e6:.1f}M" if abs(number) < 1e9 else f"{number / 1e9:.1f}G"


def age(span_ns: float) -> str:
    """Give a length of time with one unit: `12 s`, `3 min`, `5 h`, `2 d`."""
    seconds = span_ns / 1e9
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= length
    return f"{seconds:.0f} d"


def span(ms: float) -> str:
    """Give milliseconds with the unit that fits: `0.4 ms`, `402 ms`, `26.0 s`."""
    number, unit = (ms / 1e3, "s") if abs(ms) >= 999.5 else (ms, "ms")
    number = round(number, 1 if abs(number) < 99.95 else None) + 0.0  # no minus before a zero
    return f"{number:,.1f} {unit}" if abs(number) < 99.95 else f"{number:,.0f} {unit}"


def short_bytes(number: float) -> str:
    """Give bytes in at most six characters: `3.2G`, `640K`."""
    for unit in ("B", "K", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.0f}{unit}" if unit == "B" or number >= 100 else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}T"
