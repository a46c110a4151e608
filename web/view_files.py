"""A view's frame as bytes that others read: JSON, CSV, Parquet."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, get_type_hints

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, create_model

from pages.number import Number

from .page_shape import Page, View, numbers_of

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
    """What a column of a view holds; `unit` is of numbers with errors alone."""

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
    """Write a view as `answer_model` describes it."""
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
                "unit": column.unit.name if column.unit else None,
            }
            for column in view.columns
        ],
        "rows": _json_rows(view, frame),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def said(view: View, frame: pd.DataFrame) -> str:
    """Say what a view shows."""
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
    return pd.DataFrame(wanted)


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def as_csv(view: View, frame: pd.DataFrame) -> bytes:
    """Write a view as CSV; text that a spreadsheet would calculate gets an apostrophe before it."""
    columns = flat(view, frame)
    for name in columns.select_dtypes(exclude=["number", "bool", "datetime"]):
        columns[name] = [
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in columns[name]
        ]
    text: str = columns.to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%SZ")
    return text.encode()


def as_parquet(view: View, frame: pd.DataFrame) -> bytes:
    """Write a view as Parquet, what it says as the file's metadata."""
    table = pa.Table.from_pandas(flat(view, frame), preserve_index=False)
    about = {b"title": view.title.encode(), b"words": said(view, frame).encode()}
    buffer = io.BytesIO()
    kept = table.schema.metadata or {}
    pq.write_table(table.replace_schema_metadata({**kept, **about}), buffer, compression="zstd")
    return buffer.getvalue()


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
