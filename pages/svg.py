"""Elements of SVG as escaped markup: whatever text is handed in stays text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from markupsafe import Markup, escape

WIDE: Final = 760
"""Units of a chart beside which there is room for labels."""
NARROW: Final = 342
"""Units of a chart on a screen of 390 px."""
LETTER: Final = 7.2
"""Width of a letter of a label, units: the charts' text is 13 units high."""

_SAID: Final = re.compile(r' data-said="[^"]*"')
_CAMEL: Final = {"view_box": "viewBox", "pattern_units": "patternUnits"}


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """Give an element; text and values are escaped, None leaves an attribute out.

    attributes   `class_` is class, an underscore is a hyphen
    """
    written = "".join(
        f' {_attribute(key)}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    body = "".join(str(escape(part)) for part in inside)
    # Values and parts are escaped; names are of this package's modules.
    return Markup(f"<{name}{written}>{body}</{name}>")  # noqa: S704


def joined(parts: Iterable[Markup]) -> Markup:
    """Put elements one after the other."""
    return Markup("").join(parts)


def path(points: Sequence[tuple[float, float]], *, closed: bool = False) -> str:
    """Give the commands of a line through points."""
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
    """Draw for wide and for narrow screens; the style sheet shows one of the two.

    What is said of a number stands in the wide one alone: it is most of a page's bytes.
    """
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


def _attribute(key: str) -> str:
    return _CAMEL.get(key) or key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0") if math.isfinite(value) else "0"
    return str(value) if isinstance(value, int) else str(escape(value))
