"""A table of numbers as shades; a cell that is mostly noise is crossed out instead of shaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from .svg import LETTER, NARROW, both_widths, fitted, mark, picture, tag
from .wording import Number, Unit, number_in_full, value_said

SHADES: Final = 7
_HEAD = 26
_WIDEST = 120.0
_HIGHEST: Final = ((10, 30.0), (16, 21.0), (math.inf, 16.0))
"""The more rows, the lower each: a page with several maps is not to be all maps."""
_ROOM = 56.0  # width of a cell in which its number is written, too


@dataclass(frozen=True, slots=True)
class HeatTable:
    """Names of rows and columns, and the cells that are known, by (row, column).

    column_texts   what stands above a column, and what it is called where one points at it
    named_in_full  it is called by its name there, which says more
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], Number]
    column_texts: Mapping[str, str] | None = None
    named_in_full: bool = False


def heat_map(title: str, table: HeatTable, unit: Unit) -> Markup:
    """Draw a table of shades, from nothing to the largest significant number."""
    if not table.rows or not table.columns:
        return Markup("")
    largest = max(
        (e.value for e in table.cells.values() if e.told and e.value is not None), default=0.0
    )
    return both_widths(lambda width: _drawn(title, table, unit, width, _shade(largest)))


def _shade(largest: float) -> Callable[[float], int]:
    """Give the shade of a number, 0 to SHADES - 1, by its square root: small ones are seen too."""

    def shade(number: float) -> int:
        if largest <= 0 or number <= 0:
            return 0
        return min(int((number / largest) ** 0.5 * SHADES), SHADES - 1)

    return shade


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where cells lie: the first column's edge, a cell's width and height."""

    left: float
    across: float
    high: float
    hatch: str


def _drawn(
    title: str, table: HeatTable, unit: Unit, width: int, shade: Callable[[float], int]
) -> Markup:
    left = 96.0 if width <= NARROW else min(max(map(len, table.rows)) * LETTER + 12, 200.0)
    across = min((width - left) / len(table.columns), _WIDEST)
    most = next(high for rows, high in _HIGHEST if len(table.rows) <= rows)
    grid = _Grid(left, across, min(max(across, 18.0), most), f"hatch{width}")
    cells = [
        _cell(table, (row, column), unit, shade, grid, (down, at))
        for down, row in enumerate(table.rows)
        for at, column in enumerate(table.columns)
    ]
    labels = [
        tag("text", fitted(row, left - 8), x=0, y=_HEAD + (down + 0.5) * grid.high + 4)
        for down, row in enumerate(table.rows)
    ]
    height = _HEAD + grid.high * len(table.rows) + 4
    heads = _heads(table, left, across)
    said = f"{title}: {len(table.rows)} rows, {len(table.columns)} columns"
    return picture(width, height, said, _hatch(grid.hatch), *heads, *labels, *cells)


def _hatch(name: str) -> Markup:
    """What fills a cell of noise; each width has its own, as what is not shown fills nothing."""
    line = tag("path", d="M0 6L6 0", class_="cross")
    return tag(
        "pattern", line, id=name, width=6, height=6, pattern_units="userSpaceOnUse"
    )  # fmt: skip


def _heads(table: HeatTable, left: float, across: float) -> list[Markup]:
    texts = [(table.column_texts or {}).get(column, column) for column in table.columns]
    longest = max(map(len, texts)) * LETTER + 10
    every = max(1, -(-int(longest) // max(int(across), 1)))
    return [
        tag("text", text, x=left + (at + 0.5) * across, y=16, class_="tick", text_anchor="middle")
        for at, text in enumerate(texts)
        if at % every == 0
    ]


def _cell(
    table: HeatTable,
    key: tuple[str, str],
    unit: Unit,
    shade: Callable[[float], int],
    grid: _Grid,
    place: tuple[int, int],
) -> Markup:
    number = table.cells.get(key, Number(None))
    texts = {} if table.named_in_full else table.column_texts or {}
    name = f"{key[0]}, {texts.get(key[1], key[1])}"
    if number.known and number.told and number.value is not None:
        look: dict[str, str] = {"class_": f"shade{shade(number.value)}"}
    elif number.known:
        look = {"class_": "cell", "fill": f"url(#{grid.hatch})"}
    else:
        look = {"class_": "cell", "fill": "none"}
    box = tag(
        "rect", x=grid.left + place[1] * grid.across + 1, y=_HEAD + place[0] * grid.high + 1,
        width=grid.across - 2, height=grid.high - 2, rx=2, **look,
    )  # fmt: skip
    return mark(
        name, number_in_full(name, number, unit), box, *_written(number, unit, shade, grid, place)
    )


def _written(
    number: Number,
    unit: Unit,
    shade: Callable[[float], int],
    grid: _Grid,
    place: tuple[int, int],
) -> list[Markup]:
    """Write a number that is significant into its cell, where that has room for it."""
    if grid.across < _ROOM or number.value is None or not (number.known and number.told):
        return []
    return [
        tag(
            "text", value_said(number, unit), x=grid.left + (place[1] + 0.5) * grid.across,
            y=_HEAD + (place[0] + 0.5) * grid.high + 4, text_anchor="middle",
            class_=f"in on{shade(number.value)}",
        )
    ]  # fmt: skip
