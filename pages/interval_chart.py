"""Numbers with their intervals, one row each: a dot on a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from . import svg
from .wording import Number, Unit, number_in_full, number_said, places_of, value_said

_ROW = 26
_TALL_ROW = 44
_HEAD = 24


@dataclass(frozen=True, slots=True)
class IntervalRow:
    name: str
    number: Number


def interval_chart(
    title: str, rows: Sequence[IntervalRow], unit: Unit, *, signed: bool = False
) -> Markup:
    """Draw rows over a common axis that holds zero, for both widths.

    signed    differences: zero lies inside, and numbers have a sign
    """
    if not rows:
        return Markup("")
    return svg.both_widths(lambda width: _drawn(title, rows, unit, width, signed=signed))


def _drawn(
    title: str, rows: Sequence[IntervalRow], unit: Unit, width: int, *, signed: bool
) -> Markup:
    narrow = width <= svg.NARROW
    height = _TALL_ROW if narrow else _ROW
    numbers = [value_said(row.number, unit, signed=signed) for row in rows]
    right = 0.0 if narrow else svg.LETTER * max(map(len, numbers)) + 14
    left = 4.0 if narrow else min(max(len(row.name) for row in rows) * svg.LETTER + 14, 230)
    low, high = svg.around(end for row in rows for end in row.number.interval)
    if not signed:
        low = 0.0
    scale = svg.LinearScale(low, high if high > low else low + 1, left, width - right - 10)
    bottom = _HEAD + height * len(rows)

    def drawn(row: IntervalRow, number: str, top: float) -> Markup:
        baseline = top + 17
        room = width - svg.LETTER * len(number) - 16 if narrow else scale.start - 10
        name = svg.fitted(row.name, room)
        number_class = "number" if row.number.known and row.number.told else "number unsure"
        return svg.mark(
            row.name,
            number_in_full(row.name, row.number, unit, signed=signed),
            svg.tag("rect", x=0, y=top, width=width, height=height, class_="reach"),
            svg.tag("text", name, x=4 if narrow else 0, y=baseline, class_="label"),
            _interval(row.number, scale, top + (32 if narrow else 13)),
            svg.tag(
                "text", number, x=width - 4, y=baseline, text_anchor="end", class_=number_class
            ),
        )

    marks = [
        drawn(row, said, _HEAD + height * at)
        for at, (row, said) in enumerate(zip(rows, numbers, strict=True))
    ]
    axis = _axis(scale, unit, bottom, 3 if narrow else 5, signed=signed)
    return svg.picture(width, bottom + 6, f"{title}: {len(rows)} rows", axis, *marks)


def _axis(scale: svg.LinearScale, unit: Unit, bottom: float, most: int, *, signed: bool) -> Markup:
    numbers = svg.round_numbers(scale.low, scale.high, most)
    places = places_of(numbers, unit)
    return svg.joined(
        svg.tag(
            "g",
            svg.tag(
                "line", x1=scale(number), x2=scale(number), y1=_HEAD - 4, y2=bottom,
                class_="zero" if number == 0 else "grid",
            ),
            svg.tag(
                "text", number_said(number, unit, places, signed=signed), x=scale(number), y=12,
                class_="tick", text_anchor="start" if number == scale.low else "middle",
            ),
        )
        for number in numbers
    )  # fmt: skip


def _interval(number: Number, scale: svg.LinearScale, y: float) -> Markup:
    if not number.known or number.value is None:
        return svg.tag("line", x1=scale.start, x2=scale.end, y1=y, y2=y, class_="gap")
    low, high = number.interval
    ends = {"x1": scale(low), "x2": scale(high), "y1": y, "y2": y}
    if not number.told:
        return svg.tag("line", **ends, class_="noise")
    return svg.joined([
        svg.tag("line", x1=scale(0.0), x2=scale(number.value), y1=y, y2=y, class_="stem accent"),
        svg.tag("line", **ends, class_="interval accent"),
        svg.tag("circle", cx=scale(number.value), cy=y, r=4, class_="dot accent"),
    ])  # fmt: skip
