"""A view as a panel of a page: its sentence, its drawing, its numbers as a table, its files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

import pandas as pd

from pages.layout import Panel, TableCell
from pages.scale import moment_said
from pages.sparkline import sparkline
from pages.trend_chart import TrendLine
from pages.wording import ABSENT, interval_said, plain, value_said

from .page_shape import FrameColumn, Page, View, numbers_of
from .page_state import PageState
from .store_reading import StoreReading
from .view_files import json_cell, said

_MOST_ROWS: Final = 60
"""Of a table on a page; files have all."""


def view_frame(view: View, state: PageState, reading: StoreReading | None) -> pd.DataFrame:
    """Make a view's frame; one without a row has the view's columns all the same."""
    found = None if reading is None else view.frame(reading, state)
    if found is None or found.empty:
        return pd.DataFrame(columns=[column.name for column in view.columns])
    return found


def view_panel(page: Page, view: View, state: PageState, reading: StoreReading) -> Panel:
    frame = view_frame(view, state, reading)
    words = said(view, frame)
    if frame.empty:
        return Panel(view.name, view.title, words)
    query = urlencode(state.written())
    base = f"/api/v1/pages/{page.name}/{view.name}"
    ends = (("JSON", ""), ("CSV", ".csv"), ("Parquet", ".parquet"))
    hidden = len(frame) - _MOST_ROWS
    drawing = view.chart(frame) if view.chart else None
    lines = view.ways(reading, state) if view.ways else []
    ways = [_ways(frame, view, lines)] if lines else []
    return Panel(
        view.name, view.title, words,
        drawing=drawing,
        note=view.note(frame) if view.note else "",
        more=f"{hidden:,} more rows are in the files." if hidden > 0 else "",
        heads=[
            *(head for column in view.columns for head in _heads(column)),
            *((view.ways_head, False) for _ in ways),
        ],
        rows=_rows(frame.head(_MOST_ROWS), view, ways),
        files=[(text, f"{base}{end}" + (f"?{query}" if query else "")) for text, end in ends],
        unfolded=view.chart is None,
    )  # fmt: skip


def _heads(column: FrameColumn) -> list[tuple[str, bool]]:
    if column.unit is None:
        return [(column.head, column.number)]
    return [(column.head, True), ("95 % interval", True)]


def _ways(frame: pd.DataFrame, view: View, lines: Sequence[TrendLine]) -> list[TableCell]:
    """Draw the way of each row that has one."""
    drawn = {line.name: sparkline(line.name, line.points) for line in lines}
    names = map(plain, frame[view.columns[0].name].head(_MOST_ROWS))
    return [TableCell(drawn.get(name) or ABSENT) for name in names]


def _rows(
    frame: pd.DataFrame, view: View, more: Sequence[Sequence[TableCell]]
) -> list[list[TableCell]]:
    columns = [part for column in view.columns for part in _cells(frame, column)]
    return [list(row) for row in zip(*columns, *more, strict=True)]


def _cells(frame: pd.DataFrame, column: FrameColumn) -> list[list[TableCell]]:
    """Give the cells of one or two columns of a table."""
    if column.unit is None:
        values = frame[column.name]
        seconds = any(isinstance(value, datetime) and value.second for value in values)
        return [
            [TableCell(_written(value, column, seconds), number=column.number) for value in values]
        ]
    numbers, unit, signed = numbers_of(frame, column.prefix), column.unit, column.signed
    return [
        [
            TableCell(
                value_said(number, unit, signed=signed), number=True,
                unsure=not (number.known and number.told),
            )
            for number in numbers
        ],
        [TableCell(interval_said(number, unit, signed=signed), number=True) for number in numbers],
    ]  # fmt: skip


def _written(value: object, column: FrameColumn, seconds: bool) -> str:
    cell = json_cell(value)
    if cell is not None and isinstance(value, datetime):
        return moment_said(pd.Timestamp(value).timestamp(), seconds=seconds)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,.3g}" if isinstance(cell, float) else f"{cell:,}"
    return ABSENT if cell is None else column.say(cell)
