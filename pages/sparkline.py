"""A number's way in the height of a line of text, with its band."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from .scale import LinearScale, around
from .svg import path, picture, tag
from .trend_chart import TrendPoint

WIDTH = 120
HEIGHT = 26


def sparkline(name: str, points: Sequence[TrendPoint]) -> Markup:
    """Draw points without axes, from their least to their greatest; gaps stay gaps."""
    known = [point for point in points if point.number.known]
    if not known:
        return Markup("")
    low, high = around((e for p in known for e in p.number.interval), zero=False)
    if all(end == low for point in known for end in point.number.interval):
        low, high = low - 0.5, low + 0.5  # what never changes lies in the middle
    across = LinearScale(points[0].at_s, max(points[-1].at_s, points[0].at_s + 1), 2, WIDTH - 4)
    up = LinearScale(low, high, HEIGHT - 3, 3)
    upper = [(across(p.at_s), up(p.number.interval[1])) for p in known]
    lower = [(across(p.at_s), up(p.number.interval[0])) for p in known]
    middle = [(across(p.at_s), up(p.number.value or 0.0)) for p in known]
    x, y = middle[-1]
    return tag(
        "span",
        picture(
            WIDTH, HEIGHT, f"{name} over time",
            tag("path", d=path(upper + lower[::-1], closed=True), class_="band"),
            tag("path", d=path(middle), class_="line"),
            tag("circle", cx=x, cy=y, r=2.5, class_="dot"),
        ),
        class_="sparkline trend accent",
    )  # fmt: skip
