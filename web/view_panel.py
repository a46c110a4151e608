"""A view as a panel of a page and as files, and what stands around the panels of a page."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple, get_type_hints
from urllib.parse import urlencode

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, create_model

from analytics.analyst_views import finite
from pages.layout import Control, Notice, Panel, TableCell
from pages.svg import moment_said
from pages.trend_chart import sparkline
from pages.wording import ABSENT, Number, Unit, interval_said, plain, value_said

from .access_tokens import Viewer
from .page_shape import FrameColumn, Page, View, numbers_of
from .store_reading import PageState, StoreReading
from .store_watch import StoreStanding, StoreState

JsonCell = str | int | float | bool | None


def model_of(kind: type, name: str, text: str, *, without: str = "") -> type[BaseModel]:
    """Make a model of a dataclass's fields but one; each must be there."""
    parts: Any = {key: (hint, ...) for key, hint in get_type_hints(kind).items() if key != without}
    return create_model(name, __doc__=text, **parts)


NumberAnswer: Final = model_of(
    Number,
    "NumberAnswer",
    "A released number; `told` says whether it is told from zero, `reason` why there is none.",
)


class ColumnAnswer(BaseModel):
    """What a column of a view holds; `unit` is of numbers with errors alone.

    Where each row has a unit of its own, `unit` names the field of the rows that has it.
    """

    name: str
    meaning: str
    unit: str | None


class ViewAnswer(BaseModel):
    """A view as JSON: what it is about, its columns and its rows."""

    page: str
    view: str
    title: str
    words: str
    note: str
    columns: list[ColumnAnswer]


def answer_model(page: Page, view: View) -> type[BaseModel]:
    """Make the model of a view's JSON: a row has a field for each column."""
    kinds: dict[str, Any] = {
        column.name: (NumberAnswer if column.unit else JsonCell, ...) for column in view.columns
    }
    name = f"{page.name}_{view.name}".title().replace("_", "").replace("-", "")
    row = create_model(f"{name}Row", __doc__=f"A row of {page.title}: {view.title}.", **kinds)
    fields: dict[str, Any] = {"rows": (list[row], ...)}  # type: ignore[valid-type]
    return create_model(f"{name}Answer", __base__=ViewAnswer, **fields)


def as_json(page: Page, view: View, frame: pd.DataFrame) -> bytes:
    document = {
        "page": page.name,
        "view": view.name,
        "title": view.title,
        "words": said(view, frame),
        "note": view.note(frame) if view.note and not frame.empty else "",
        "columns": [
            {
                "name": column.name,
                "meaning": column.meaning,
                "unit": column.unit.name if isinstance(column.unit, Unit) else column.unit,
            }
            for column in view.columns
        ],
        "rows": _json_rows(view, frame),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def said(view: View, frame: pd.DataFrame) -> str:
    return view.empty if frame.empty else view.words(frame)


def flat(view: View, frame: pd.DataFrame) -> pd.DataFrame:
    """Give the columns of a view alone, a number as value, standard_error, low, high and so on."""
    wanted: dict[str, Any] = {}
    for column in view.columns:
        if column.unit is None:
            wanted[column.name] = list(frame[column.name])
            continue
        numbers = [asdict(number) for number in numbers_of(frame, column.prefix)]
        for part in NumberAnswer.model_fields:
            wanted[f"{column.name}_{part}"] = [number[part] for number in numbers]
    return finite(pd.DataFrame(wanted))


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def as_csv(_: Page, view: View, frame: pd.DataFrame) -> bytes:
    """Write a view as CSV; text that a spreadsheet would calculate gets an apostrophe before it."""
    columns = flat(view, frame)
    for name in columns.select_dtypes(exclude=["number", "bool", "datetime"]):
        columns[name] = [
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in columns[name]
        ]
    text: str = columns.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%SZ")
    return text.encode()


def as_parquet(_: Page, view: View, frame: pd.DataFrame) -> bytes:
    """Write a view as Parquet, what it says as the file's metadata."""
    table = pa.Table.from_pandas(flat(view, frame), preserve_index=False)
    about = {b"title": view.title.encode(), b"words": said(view, frame).encode()}
    buffer = io.BytesIO()
    kept = table.schema.metadata or {}
    pq.write_table(table.replace_schema_metadata({**kept, **about}), buffer, compression="zstd")
    return buffer.getvalue()


class FileKind(NamedTuple):
    """What a view can be loaded as: the ending of its address, its type, and what writes it."""

    ending: str
    media_type: str
    write: Callable[[Page, View, pd.DataFrame], bytes]


FILE_KINDS: Final = {
    "json": FileKind("", "application/json", as_json),
    "csv": FileKind(".csv", "text/csv; charset=utf-8", as_csv),
    "parquet": FileKind(".parquet", "application/vnd.apache.parquet", as_parquet),
}


def _json_rows(view: View, frame: pd.DataFrame) -> list[dict[str, Any]]:
    if frame.empty:
        return []
    columns = [
        [asdict(number) for number in numbers_of(frame, column.prefix)]
        if column.unit
        else [json_cell(value) for value in frame[column.name]]
        for column in view.columns
    ]
    names = [column.name for column in view.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_cell(value: Any) -> JsonCell:
    """Give a cell as JSON has it: times as ISO 8601 in UTC, what is missing as null."""
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, datetime):
        return f"{value.isoformat()}Z" if value.tzinfo is None else value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool) else str(value)


_MOST_ROWS: Final = 60  # of a table on a page; files have all


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
    ends = zip(("JSON", "CSV", "Parquet"), FILE_KINDS.values(), strict=True)
    hidden = len(frame) - _MOST_ROWS
    drawing = view.chart(frame) if view.chart else None
    lines = view.ways(reading, state) if view.ways else []
    drawn = {line.name: sparkline(line.name, line.points) for line in lines}
    shown = frame.head(_MOST_ROWS)
    heads, columns = list[tuple[str, bool]](), list[list[TableCell]]()
    for column in view.columns:
        if column.unit is not None and f"{column.prefix}value" not in shown:
            continue  # of another span
        heads.append((column.head, column.number or column.unit is not None))
        columns += _cells(shown, column)
        if column.unit is not None:
            heads.append(("95 % interval", True))
    if lines:
        heads.append((view.ways_head, False))
        names = map(plain, shown[view.columns[0].name])
        columns.append([TableCell(drawn.get(name) or ABSENT) for name in names])
    return Panel(
        view.name, view.title, words,
        drawing=drawing,
        note=view.note(frame) if view.note else "",
        more=f"{hidden:,} more rows are in the files." if hidden > 0 else "",
        heads=heads,
        rows=[list(row) for row in zip(*columns, strict=True)],
        files=[(text, f"{base}{kind.ending}" + (f"?{query}" if query else ""))
               for text, kind in ends],
        unfolded=view.chart is None,
    )  # fmt: skip


def _cells(frame: pd.DataFrame, column: FrameColumn) -> list[list[TableCell]]:
    """Give the cells of one or two columns of a table."""
    if column.unit is None:
        found = frame[column.name]
        seconds = any(isinstance(value, datetime) and value.second for value in found)
        texts = [_written(value, column, seconds) for value in found]
        return [[TableCell(text, number=column.number) for text in texts]]
    values, intervals = list[TableCell](), list[TableCell]()
    numbers = numbers_of(frame, column.prefix)
    for number, unit in zip(numbers, column.units(frame), strict=True):
        value = value_said(number, unit, signed=column.signed)
        interval = interval_said(number, unit, signed=column.signed)
        values.append(TableCell(value, number=True, unsure=not (number.known and number.told)))
        intervals.append(TableCell(interval, number=True))
    return [values, intervals]


def _written(value: object, column: FrameColumn, seconds: bool) -> str:
    cell = json_cell(value)
    if cell is not None and isinstance(value, datetime):
        return moment_said(pd.Timestamp(value).timestamp(), seconds=seconds)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,.3g}" if isinstance(cell, float) else f"{cell:,}"
    return ABSENT if cell is None else column.say(cell)


_SIMULATED: Final = "These hosts are simulated: no number here is of a real fleet."


def controls(page: Page, state: PageState, reading: StoreReading) -> Iterator[Control]:
    chosen = state.model_dump(mode="json")
    for choice in page.choices:
        options = list(choice.options(reading, state))
        value = "" if chosen[choice.name] is None else str(chosen[choice.name])
        if choice.dates:
            days = (options[0][0], options[-1][0])
            yield Control(choice.name, choice.label, (), value, days)
        elif len(options) > 1:
            if value not in dict(options):
                options.append((value, value))
            yield Control(choice.name, choice.label, options, value)


def links(
    pages: Sequence[Page], viewer: Viewer, state: PageState, here: str | None
) -> list[tuple[str, str, bool]]:
    """Give the pages that a viewer may open; each keeps what is looked at."""
    query = urlencode(state.written())
    return [
        (page.title, f"/{page.name}" + (f"?{query}" if query else ""), page.name == here)
        for page in pages
        if viewer.role in page.roles
    ]


def notices(standing: StoreStanding) -> list[Notice]:
    """Say what must be known before the numbers."""
    found = []
    if standing.simulated:
        played = f" {standing.played}." if standing.played else ""
        found.append(Notice("simulated", f"{_SIMULATED}{played}"))
    if standing.state is not StoreState.WELL:
        found.append(Notice(standing.state.value, standing.detail))
    return found


def status_said(standing: StoreStanding) -> str:
    """Say at a page's foot what it is made of."""
    if not standing.series:
        return "Everything here is made of released numbers; looking costs no privacy budget."
    others = f" {standing.detail}" if standing.state is StoreState.WELL and standing.detail else ""
    return (
        f"Newest window until {moment_said(standing.newest_s)} UTC. Everything here is made of "
        f"released numbers; looking costs no privacy budget.{others}"
    )
