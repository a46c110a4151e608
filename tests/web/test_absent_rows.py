"""Pages and their files over stores in which something is absent: words, never a failure."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from aggregator.releases.packs import mark_new
from tests.web_kit import client, fill
from web.page_list import PAGES


def of_one_section(rows: pa.Table) -> pa.Table | None:
    if "section" not in rows.column_names:
        return rows
    return rows.filter(pc.equal(rows["section"], "host_network"))


def suppressed_alone(rows: pa.Table) -> pa.Table | None:
    return None if "section" in rows.column_names else rows


def null(every: int, *names: str) -> Callable[[pa.Table], pa.Table | None]:
    """As no Leader writes it: another program's Parquet, one row of so many without a value."""

    def changed(rows: pa.Table) -> pa.Table:
        absent = pa.array([place % every == 0 for place in range(rows.num_rows)])
        for name in set(names).intersection(rows.column_names):
            at = rows.column_names.index(name)
            field = rows.schema.field(at)
            nulls = pc.if_else(absent, pa.scalar(None, field.type), rows[name])
            rows = rows.set_column(at, field.with_nullable(True), nulls)
        return rows

    return changed


@pytest.mark.parametrize(
    ("change", "unfit"),
    [
        pytest.param(of_one_section, [], marks=pytest.mark.release),
        (suppressed_alone, []),
        pytest.param(
            null(3, "cause"),
            ["cause is NULL in "],
            marks=pytest.mark.release,
        ),
        (null(1, "n_hosts"), ["not as a Leader writes them"]),
    ],
    ids=["one section", "all suppressed", "no cause", "no hosts"],
)
def test_page_says_what_is_absent(
    change: Callable[[pa.Table], pa.Table | None], unfit: list[str], tmp_path: Path
) -> None:
    store = fill(tmp_path)
    for path in list(store.rglob("*.parquet")):
        rows = change(pq.ParquetFile(path).read())
        if rows is None or not rows.num_rows:
            path.unlink()
        else:
            pq.write_table(rows, path)
    answers, told = {}, ""
    with client(store) as asked:
        for page in PAGES:
            answer = asked.get(f"/{page.name}")
            answers[page.name] = answer.status_code
            told += answer.text
            for view in page.views if not unfit else page.views[:1]:
                name = f"/api/v1/pages/{page.name}/{view.name}"
                file = asked.get(name)
                answers[name] = file.status_code
                told += file.text
                if file.status_code == 503:
                    assert "not as a Leader writes them" in file.json()["detail"]
        answers["/metrics"] = asked.get("/metrics").status_code
    assert {name: code for name, code in answers.items() if code not in {200, 503}} == {}
    assert [words for words in unfit if words not in told] == []
    assert re.findall(r"epsilon nan|\bNaN\b", told) == []
    assert ("not as a Leader writes them" in told) is bool(unfit)


def _new(store: Path) -> None:
    store.mkdir()
    mark_new(store)


@pytest.mark.parametrize(
    ("make", "said", "code"),
    [
        (lambda _: None, "the Leader makes it as it starts", 200),
        (Path.mkdir, "the Leader makes it as it starts", 200),
        (_new, "holds no release yet: the first one appears here", 200),
        (Path.touch, "/releases: Not a directory", 503),
    ],
    ids=["no folder", "empty", "new", "a file"],
)
def test_store_that_is_absent_is_said_to_be_and_how_it_comes(
    make: Callable[[Path], None], said: str, code: int, tmp_path: Path
) -> None:
    store = tmp_path / "releases"
    make(store)
    with client(store) as asked:
        for page in PAGES:
            text = asked.get(f"/{page.name}").text
            assert said in text
            assert "Errno" not in text
            for view in page.views:
                for ending in ("", ".csv", ".parquet"):
                    file = f"/api/v1/pages/{page.name}/{view.name}{ending}"
                    assert asked.get(file).status_code == code
        assert asked.get("/metrics").status_code == 200
        rows = asked.get("/api/v1/releases/cells.parquet")
        assert rows.status_code == (200 if make is _new else 503)
        assert make is _new or said in rows.json()["detail"]
