"""Elements of SVG, escaped: whatever text is handed in stays text; and where a number lies."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup, escape

WIDE: Final = 760  # units of a chart beside which there is room for labels
NARROW: Final = 342  # units of a chart on a screen of 390 px
LETTER: Final = 7.2  # width of a letter of a label, units: the charts' text is 13 units high

_SAID: Final = re.compile(r' data-said="[^"]*"')
_CAMEL: Final = {"view_box": "viewBox", "pattern_units": "patternUnits"}


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """Give an element, escaped; `class_` is class, an underscore a hyphen, None left out."""
    written = "".join(
        f' {_CAMEL.get(key) or key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    body = "".join(str(escape(part)) for part in inside)
    # Values and parts are escaped; names are of this package's modules.
    return Markup(f"<{name}{written}>{body}</{name}>")  # noqa: S704


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def path(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    # Whole units across: a long line is most of a page's bytes.
    steps = " ".join(f"{x:.0f} {_value(y)}" for x, y in points)
    return f"M{steps}{'Z' if closed else ''}" if points else ""


def picture(width: float, height: float, said: str, *inside: Markup) -> Markup:
    """Give a whole drawing with its description for those who do not see it."""
    box = f"0 0 {_value(width)} {_value(height)}"
    return tag(
        "svg", *inside, view_box=box, role="img", aria_label=said, focusable="false",
        xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def mark(key: str, said: str, *inside: Markup, **attributes: object) -> Markup:
    """Give what one number is drawn as; the page's script says `said` where it is pointed at."""
    return tag("g", *inside, class_="mark", data_key=key, data_said=said, **attributes)


def both_widths(draw: Callable[[int], Markup]) -> Markup:
    """Draw for wide and narrow screens; what is said of a number stands in the wide one alone."""
    wide, narrow = draw(WIDE), Markup(_SAID.sub("", draw(NARROW)))  # noqa: S704  (is markup)
    return joined(
        tag("div", drawing, class_=f"drawing {name}")
        for name, drawing in (("wide", wide), ("narrow", narrow))
    )


def fitted(text: str, room: float) -> str:
    """Cut text to so many units; a mark says that it was cut."""
    most = max(int(room / LETTER), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Move labels so that neighbours are `apart`; the order stays. They end at `high`."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = [max(place, low) for place in places]
    for before, at in itertools.pairwise(order):
        moved[at] = max(moved[at], moved[before] + apart)
    limit = high
    for at in reversed(order):
        moved[at] = min(moved[at], limit)
        limit = moved[at] - apart
    return moved


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0") if math.isfinite(value) else "0"
    return str(value) if isinstance(value, int) else str(escape(value))


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
    """Give moments to write at a time axis from unix second to second, each with its text."""
    length = max(last_s - first_s, 1.0)
    step = next((s for s in _SECONDS if length / s <= most), _SECONDS[-1])
    # Days and weeks begin on a Monday, which unix time does not.
    shift = 4 * 86_400 if step >= 2 * 86_400 else 0
    at = math.ceil((first_s - shift) / step) * step + shift
    found = []
    while at <= last_s:
        when = datetime.fromtimestamp(at, UTC)
        text = f"{when:%H:%M}" if step >= 60 else f"{when:%H:%M:%S}"
        if step >= 86_400 or at % 86_400 == 0:
            text = f"{when.day} {when:%b}"
        found.append((float(at), text))
        at += step
    return found


def moment_said(at_s: float, *, seconds: bool = False) -> str:
    """Name a moment to the minute, UTC; to the second where it has one or others have."""
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
