"""Releases of before the bias bound: stores, files and tables of them still read, without one."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from aggregator.releases.cause_files import tables_of, tables_read
from aggregator.releases.releases import query, read_causes, read_releases
from aggregator.releases.store import Store
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, true_steps, window
from wire.catalogue import LEFT_OUT

N = 12_000
TASK = make_task()
VECTOR = true_steps(TASK, N, {("incidents", "disk_io"): 64 * 300, ("incidents", LEFT_OUT): 64 * 90})


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A Leader's folder as it was left before."""
    with Store(tmp_path / "store.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.write(window(TASK, VECTOR, N))
    with duckdb.connect(str(tmp_path / "store.duckdb")) as database:
        database.execute("ALTER TABLE cells DROP COLUMN bias_bound")
    for file in (tmp_path / "releases").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(file).read().drop_columns(["bias_bound"]), file)
    return tmp_path


def test_old_files_read_without_a_bound(old: Path) -> None:
    folder = old / "releases"
    cells = read_releases(folder, section="incidents")
    assert len(cells) == 15
    assert cells["bias_bound"].isna().all()
    (rows,) = query("SELECT count(bias_bound) AS known FROM latest", folder).to_dict("records")
    assert rows["known"] == 0
    (stored,) = tables_read(read_causes(folder).to_dict("records"))
    (anew,) = tables_of(cells.to_dict("records"), None, None)
    assert stored.bias_bound is anew.bias_bound is None
    assert LEFT_OUT not in {row.cause for row in anew.rows}


def test_old_store_takes_releases_that_have_one(old: Path) -> None:
    with Store(old / "store.duckdb", old / "releases", CATALOGUE) as store:
        store.write(window(TASK, VECTOR, N, start=60))
    cells = read_releases(old / "releases", section="incidents")
    by_window = cells.groupby("window_start")["bias_bound"].count()
    assert by_window.tolist() == [0, 15]
    new = cells[cells["bias_bound"].notna()]
    told = new[new["cell"] == LEFT_OUT].iloc[0]
    assert told["value"] == pytest.approx(90)
    assert new["bias_bound"].to_numpy() == pytest.approx(90 + 1.6448536 * told["standard_error"])
    newest, before = tables_read(read_causes(old / "releases").to_dict("records"))
    assert newest.bias_bound == pytest.approx(told["bias_bound"])
    assert before.bias_bound is None
