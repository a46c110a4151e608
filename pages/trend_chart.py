"""Numbers over time as lines with their intervals as bands; windows without a release are gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup

from . import svg, wording

TONES: Final = 8  # colours that are told apart, also by who sees few: a chart has no more lines
_HEIGHT = 300
_FOOT = 34
_BOLD_LETTER = 1.12 * svg.LETTER
_TOP = 10


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One window or period: its first moment and length, in seconds, and its number."""

    at_s: float
    length_s: float
    number: wording.Number


@dataclass(frozen=True, slots=True)
class TrendLine:
    """A named row of points in their order."""

    name: str
    points: Sequence[TrendPoint]
    tone: int


def trend_chart(title: str, lines: Sequence[TrendLine], unit: wording.Unit) -> Markup:
    """Draw lines over one axis of time, for both widths."""
    shown = [line for line in lines[:TONES] if line.points]
    if not shown:
        return Markup("")
    return svg.both_widths(lambda width: _drawn(title, shown, unit, width))


def _drawn(title: str, lines: Sequence[TrendLine], unit: wording.Unit, width: int) -> Markup:
    narrow = width <= svg.NARROW
    longest = max(len(line.name) for line in lines) * _BOLD_LETTER + 16
    right = 8.0 if narrow else min(longest, 230.0)
    times = [point for line in lines for point in line.points]
    first = min(point.at_s for point in times)
    last = max(point.at_s + point.length_s for point in times)
    low, high = svg.around(end for point in times for end in point.number.interval)
    if all(p.number.value is None or p.number.value >= 0 for p in times):
        low = 0.0
    across = svg.LinearScale(first, last, 46, width - right)
    up = svg.LinearScale(low, high, _HEIGHT, _TOP)
    legend = _legend(lines, width) if narrow else _names(lines, up, across.end + 8, right)
    legend_height = 20 * -(-len(lines) // _in_a_row(lines, width)) if narrow else 0
    return svg.picture(
        width, _HEIGHT + _FOOT + legend_height, f"{title}: {len(lines)} lines over time",
        _axes(across, up, unit, 4 if narrow else 7),
        _gaps(lines, across),
        *(_line(line, across, up) for line in lines),
        _marks(lines, across, up, unit),
        legend,
    )  # fmt: skip


def _axes(across: svg.LinearScale, up: svg.LinearScale, unit: wording.Unit, most: int) -> Markup:
    numbers = svg.round_numbers(up.low, up.high)
    places = wording.places_of(numbers, unit)
    bare = replace(unit, suffix="%" if unit.suffix == " %" else "")
    lines = [
        svg.tag(
            "g",
            svg.tag("line", x1=across.start, x2=across.end, y1=up(number), y2=up(number),
                class_="zero" if number == 0 else "grid"),
            svg.tag("text", wording.number_said(number, bare, places), x=across.start - 8,
                y=up(number) + 4, class_="tick", text_anchor="end"),
        )
        for number in numbers
    ]  # fmt: skip
    times = [
        svg.tag("text", text, x=across(at), y=_HEIGHT + 20, class_="tick", text_anchor="middle")
        for at, text in svg.round_times(across.low, across.high, most)
        if across.start + 8 <= across(at) <= across.end - 8
    ]
    return svg.joined([*lines, *times])


def _gaps(lines: Sequence[TrendLine], across: svg.LinearScale) -> Markup:
    """Mark below the axis where the first line has no number: something was suppressed there."""
    return svg.joined(
        svg.tag("line", x1=x, x2=max(end, x + 1.5), y1=_HEIGHT + 4, y2=_HEIGHT + 4, class_="gap")
        for p in lines[0].points
        for x, end in [(across(p.at_s), across(p.at_s + p.length_s))]
        if not p.number.known
    )


def _line(line: TrendLine, across: svg.LinearScale, up: svg.LinearScale) -> Markup:
    parts = []
    for run in _runs(line.points):
        places = [(across(p.at_s + p.length_s / 2), p.number) for p in run]
        upper = [(x, up(e.interval[1])) for x, e in places]
        lower = [(x, up(e.interval[0])) for x, e in places]
        middle = [(x, up(e.value or 0.0)) for x, e in places]
        parts.append(svg.tag("path", d=svg.path(upper + lower[::-1], closed=True), class_="band"))
        if len(run) == 1:
            x, y = middle[0]
            parts.append(
                svg.tag("line", x1=x, x2=x, y1=upper[0][1], y2=lower[0][1], class_="whisker")
            )
            parts.append(svg.tag("circle", cx=x, cy=y, r=3, class_="dot"))
        else:
            parts.append(svg.tag("path", d=svg.path(middle), class_="line"))
    return svg.tag("g", *parts, class_=f"trend tone{line.tone}")


def _runs(points: Sequence[TrendPoint]) -> Iterator[list[TrendPoint]]:
    """Cut a row of points where one has no number or a window is lacking."""
    run: list[TrendPoint] = []
    for point in points:
        after = run and point.at_s > run[-1].at_s + 1.5 * run[-1].length_s
        if run and (after or not point.number.known):
            yield run
            run = []
        if point.number.known:
            run.append(point)
    if run:
        yield run


_MOST_MARKS: Final = 60


def _marks(
    lines: Sequence[TrendLine], across: svg.LinearScale, up: svg.LinearScale, unit: wording.Unit
) -> Markup:
    """Moments that can be pointed at, which tell every line; of many, every so many."""
    at: dict[float, list[tuple[TrendLine, TrendPoint]]] = {}
    for line in lines:
        for point in line.points:
            at.setdefault(point.at_s, []).append((line, point))
    every = -(-len(at) // _MOST_MARKS)
    moments = sorted(at)[::-1][::every]
    wide = (across.end - across.start) / max(len(moments), 1)

    def drawn(at_s: float, points: Sequence[tuple[TrendLine, TrendPoint]]) -> Markup:
        length_s = points[0][1].length_s
        said = [f"{svg.moment_said(at_s)} UTC, {svg.length_said(length_s)}"]
        for line, point in points:
            interval = wording.interval_said(point.number, unit)
            between = "" if interval == wording.ABSENT else f" ({interval})"
            said.append(f"{line.name}: {wording.value_said(point.number, unit)}{between}")
        x, high = across(at_s + length_s / 2), up.start - up.end
        return svg.mark(
            f"{at_s:.0f}",
            "; ".join(said),
            svg.tag("rect", x=x - wide / 2, y=up.end, width=wide, height=high, class_="reach"),
            svg.tag("line", x1=x, x2=x, y1=up.end, y2=up.start, class_="cursor"),
        )

    return svg.joined(drawn(moment, at[moment]) for moment in reversed(moments))


def _names(lines: Sequence[TrendLine], up: svg.LinearScale, x: float, room: float) -> Markup:
    known = [[p.number.value for p in line.points if p.number.value is not None] for line in lines]
    ends = [up(values[-1] if values else 0.0) for values in known]
    places = svg.spread(ends, 16, _TOP + 4, _HEIGHT)
    return svg.joined(
        svg.tag(
            "text", svg.fitted(line.name, room - 8), x=x, y=y + 4, class_=f"name tone{line.tone}"
        )
        for line, y in zip(lines, places, strict=True)
    )


def _legend(lines: Sequence[TrendLine], width: int) -> Markup:
    in_a_row = _in_a_row(lines, width)
    room = width / in_a_row
    return svg.joined(
        svg.tag(
            "g",
            svg.tag("line", x1=4 + x, x2=20 + x, y1=y - 4, y2=y - 4, class_="line"),
            svg.tag("text", svg.fitted(line.name, room - 30), x=26 + x, y=y, class_="name"),
            class_=f"trend tone{line.tone}",
        )
        for at, line in enumerate(lines)
        for x, y in [(room * (at % in_a_row), _HEIGHT + _FOOT + 12 + 20 * (at // in_a_row))]
    )


def _in_a_row(lines: Sequence[TrendLine], width: int) -> int:
    """Give how many names of a narrow legend stand beside each other: one where any is long."""
    half = width / 2 - 30
    return 2 if all(svg.fitted(line.name, half) == line.name for line in lines) else 1


WIDTH = 120
HEIGHT = 26


def sparkline(name: str, points: Sequence[TrendPoint]) -> Markup:
    """Draw points without axes, from their least to their greatest; gaps stay gaps."""
    known = [point for point in points if point.number.known]
    if not known:
        return Markup("")
    low, high = svg.around((e for p in known for e in p.number.interval), zero=False)
    if all(end == low for point in known for end in point.number.interval):
        low, high = low - 0.5, low + 0.5  # what never changes lies in the middle
    across = svg.LinearScale(points[0].at_s, max(points[-1].at_s, points[0].at_s + 1), 2, WIDTH - 4)
    up = svg.LinearScale(low, high, HEIGHT - 3, 3)
    upper = [(across(p.at_s), up(p.number.interval[1])) for p in known]
    lower = [(across(p.at_s), up(p.number.interval[0])) for p in known]
    middle = [(across(p.at_s), up(p.number.value or 0.0)) for p in known]
    x, y = middle[-1]
    return svg.tag(
        "span",
        svg.picture(
            WIDTH, HEIGHT, f"{name} over time",
            svg.tag("path", d=svg.path(upper + lower[::-1], closed=True), class_="band"),
            svg.tag("path", d=svg.path(middle), class_="line"),
            svg.tag("circle", cx=x, cy=y, r=2.5, class_="dot"),
        ),
        class_="sparkline trend accent",
    )  # fmt: skip
