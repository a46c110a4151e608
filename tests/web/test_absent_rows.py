"""Pages and their files over stores in which something is absent: words, never a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.web_kit import client, fill
from web.page_list import PAGES


def of_one_section(rows: pa.Table) -> pa.Table | None:
    if "section" not in rows.column_names:
        return rows
    return rows.filter(pc.equal(rows["section"], "host_network"))


def null(name: str) -> Callable[[pa.Table], pa.Table | None]:
    """As no Leader writes it: another program's Parquet."""

    def changed(rows: pa.Table) -> pa.Table:
        if name not in rows.column_names:
            return rows
        at = rows.column_names.index(name)
        field = rows.schema.field(at)
        return rows.set_column(at, field, pa.nulls(rows.num_rows, field.type))

    return changed


@pytest.mark.parametrize(
    ("change", "unfit"),
    [(of_one_section, False), (null("cause"), True), (null("n_hosts"), True)],
    ids=["one section", "no cause", "no hosts"],
)
def test_page_says_what_is_absent(
    change: Callable[[pa.Table], pa.Table | None], unfit: bool, tmp_path: Path
) -> None:
    store = fill(tmp_path)
    for path in list(store.rglob("*.parquet")):
        rows = change(pq.ParquetFile(path).read())
        if rows is None or not rows.num_rows:
            path.unlink()
        else:
            pq.write_table(rows, path)
    answers, told = {}, 0
    with client(store) as asked:
        for page in PAGES:
            answer = asked.get(f"/{page.name}")
            answers[page.name] = answer.status_code
            told += "not as a Leader writes them" in answer.text
            for view in page.views[:1]:
                name = f"/api/v1/pages/{page.name}/{view.name}"
                file = asked.get(name)
                answers[name] = file.status_code
                if file.status_code == 503:
                    assert "not as a Leader writes them" in file.json()["detail"]
        answers["/metrics"] = asked.get("/metrics").status_code
    assert {name: code for name, code in answers.items() if code not in {200, 503}} == {}
    assert bool(told) is unfit
