"""A table of numbers as shades; a cell that is mostly noise is crossed out instead of shaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    return both_widths(lambda width: _drawn(title, table, unit, width, largest))


def _drawn(title: str, table: HeatTable, unit: Unit, width: int, largest: float) -> Markup:
    left = 96.0 if width <= NARROW else min(max(map(len, table.rows)) * LETTER + 12, 200.0)
    across = min((width - left) / len(table.columns), _WIDEST)
    most = next(high for rows, high in _HIGHEST if len(table.rows) <= rows)
    high = min(max(across, 18.0), most)
    # What fills a cell of noise; each width has its own, as what is not shown fills nothing.
    hatch = f"hatch{width}"
    line = tag("path", d="M0 6L6 0", class_="cross")
    pattern = tag("pattern", line, id=hatch, width=6, height=6, pattern_units="userSpaceOnUse")
    named = {} if table.named_in_full else table.column_texts or {}

    def cell(row: str, column: str, down: int, at: int) -> Markup:
        number = table.cells.get((row, column), Number(None))
        name = f"{row}, {named.get(column, column)}"
        look = {"class_": "cell", "fill": f"url(#{hatch})" if number.known else "none"}
        text = []
        if number.known and number.told and number.value is not None:
            # By its square root: small ones are seen too.
            part = number.value / largest if largest > 0 and number.value > 0 else 0.0
            shade = min(int(part**0.5 * SHADES), SHADES - 1)
            look = {"class_": f"shade{shade}"}
            if across >= _ROOM:
                x, y = left + (at + 0.5) * across, _HEAD + (down + 0.5) * high + 4
                ink = {"text_anchor": "middle", "class_": f"in on{shade}"}
                text = [tag("text", value_said(number, unit), x=x, y=y, **ink)]
        x, y = left + at * across + 1, _HEAD + down * high + 1
        box = tag("rect", x=x, y=y, width=across - 2, height=high - 2, rx=2, **look)
        return mark(name, number_in_full(name, number, unit), box, *text)

    cells = [
        cell(row, column, down, at)
        for down, row in enumerate(table.rows)
        for at, column in enumerate(table.columns)
    ]
    labels = [
        tag("text", fitted(row, left - 8), x=0, y=_HEAD + (down + 0.5) * high + 4)
        for down, row in enumerate(table.rows)
    ]
    height = _HEAD + high * len(table.rows) + 4
    heads = _heads(table, left, across)
    said = f"{title}: {len(table.rows)} rows, {len(table.columns)} columns"
    return picture(width, height, said, pattern, *heads, *labels, *cells)


def _heads(table: HeatTable, left: float, across: float) -> list[Markup]:
    texts = [(table.column_texts or {}).get(column, column) for column in table.columns]
    longest = max(map(len, texts)) * LETTER + 10
    every = max(1, -(-int(longest) // max(int(across), 1)))
    return [
        tag("text", text, x=left + (at + 0.5) * across, y=16, class_="tick", text_anchor="middle")
        for at, text in enumerate(texts)
        if at % every == 0
    ]
