"""JSON, CSV and Parquet of every view, of a store whose every name is hostile."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator

import pandas as pd
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from pages.wording import SHARE
from tests.web_kit import client, fill, make_hostile
from web.page_list import PAGES
from web.page_shape import FrameColumn, View
from web.view_panel import as_csv, as_json, as_parquet

HOSTILE = "=<script>alert(1)</script>\"'&{{7*7}}\r\n@evil,;"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
VIEWS = [(page.name, view.name) for page in PAGES for view in page.views]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    store = fill(tmp_path_factory.mktemp("store"), HOSTILE)
    make_hostile(store, HOSTILE)
    with client(store) as found:
        yield found


@pytest.mark.parametrize(("page", "view"), VIEWS)
def test_files_of_a_view_hold_its_rows_and_no_formula(
    asked: TestClient, page: str, view: str
) -> None:
    base = f"/api/v1/pages/{page}/{view}"
    described, written, packed = (asked.get(f"{base}{end}") for end in ("", ".csv", ".parquet"))
    rows = described.json()["rows"]
    table = list(csv.DictReader(io.StringIO(written.text, newline="")))
    parquet = pq.read_table(io.BytesIO(packed.content))
    assert len(table) == len(rows) == len(parquet)
    assert {"", ".csv", ".parquet"} == {
        answer.headers.get("content-disposition", "").removesuffix('"').rpartition(view)[2]
        for answer in (described, written, packed)
    }
    texts = [cell for row in table for cell in row.values() if not _number(cell)]
    assert [text for text in texts if text.startswith(FORMULA)] == []
    for column in described.json()["columns"]:
        if column["unit"] is not None:
            assert parquet[f"{column['name']}_value"].to_pylist() == [
                row[column["name"]]["value"] for row in rows
            ]
            continue
        for row, line in zip(rows, table, strict=True):
            if isinstance(row[column["name"]], str) and HOSTILE in row[column["name"]]:
                assert line[column["name"]] == f"'{row[column['name']]}"


def test_infinities_are_missing_in_every_file() -> None:
    frame = pd.DataFrame({"a": [math.inf, 1.5], "b": [math.nan, -math.inf], "b_error": [1.0, 2.0]})
    columns = FrameColumn("a", "A", "", number=True), FrameColumn("b", "B", "", SHARE, "b_")
    view = View("v", "V", lambda *_: frame, columns, lambda _: "")
    page = PAGES[0]
    assert [row["a"] for row in json.loads(as_json(page, view, frame))["rows"]] == [None, 1.5]
    written = list(csv.DictReader(io.StringIO(as_csv(page, view, frame).decode())))
    parquet = pq.read_table(io.BytesIO(as_parquet(page, view, frame)))
    assert [row["a"] for row in written] == ["", "1.5"]
    assert parquet["a"].to_pylist() == [None, 1.5]
    assert {row["b_value"] for row in written} | {*parquet["b_value"].to_pylist()} == {"", None}


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_hostile_names_are_in_most_views_as_text(asked: TestClient) -> None:
    seen = [asked.get(f"/api/v1/pages/{page}/{view}").text for page, view in VIEWS]
    assert sum("<script>" in text for text in seen) > len(VIEWS) // 3
    for page in PAGES:
        assert "<script>alert" not in asked.get(f"/{page.name}").text
