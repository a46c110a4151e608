"""Stores of before counts were coarse: readers get coarse ones, before and after they are anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow.parquet as pq
import pytest

from aggregator.releases.compaction import Compaction
from aggregator.releases.release_files import utc
from aggregator.releases.releases import query
from aggregator.releases.store import Store
from analytics import connect
from analytics.analyst_views import OUTCOMES_VIEW, PERIOD_VIEWS
from tests.aggregator.releases.release_kit import CATALOGUE
from tests.upgrade import exact_store
from tests.upgrade.exact_store import DAY, release
from tests.upgrade.old_tree import NoHistory, unpack

pytestmark = pytest.mark.release

LAST_EXACT: Final = "3537c091a839e253583504859a76fe06247e1fb0"
HOSTS = 12_000
VIEWS = ("released", "with_basis", "windows", "suppressed", "latest")

Tables = dict[str, pd.DataFrame]


@pytest.fixture(scope="module", params=[False, True], ids=["files", "packs"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores that the older code wrote of one vector, of one host more or less."""
    try:
        old = unpack(LAST_EXACT, request.config.cache.mkdir("old_trees"))
    except NoHistory as reason:
        pytest.skip(str(reason))
    made = []
    for hosts in (HOSTS - 1, HOSTS):
        folder = tmp_path_factory.mktemp("store")
        subprocess.run(
            [sys.executable, exact_store.__file__, folder, str(hosts), str(int(request.param))],
            cwd=old, env={**os.environ, "PYTHONPATH": str(old)}, check=True,
        )  # fmt: skip
        made.append(folder)
    return made


@pytest.fixture
def copies(stores: list[Path], tmp_path: Path) -> list[Path]:
    return [shutil.copytree(one, tmp_path / str(at)) for at, one in enumerate(stores)]


def seen(folder: Path) -> Tables:
    return {view: query(f"SELECT * FROM {view} ORDER BY ALL", folder) for view in VIEWS}


def rolled_up(folder: Path) -> Tables:
    with connect(folder) as fleet:
        return {
            view: fleet.sql(f"SELECT * FROM {view} ORDER BY ALL")
            for view in (OUTCOMES_VIEW, *PERIOD_VIEWS)
        }


def files(folder: Path) -> Tables:
    return {
        str(path.relative_to(folder)): pq.ParquetFile(path).read().to_pandas()
        for path in sorted(folder.rglob("*.parquet"))
    }


def different(one: Tables, other: Tables) -> list[str]:
    assert one.keys() == other.keys()
    return [
        f"{name}: {column}"
        for name, table in one.items()
        for column in table
        if not table[column].equals(other[name][column])
    ]


def test_readers_get_coarse_counts_before_anybody_wrote_the_store_anew(copies: list[Path]) -> None:
    few, many = (folder / "releases" for folder in copies)
    assert different(seen(few), seen(many)) == []
    assert seen(many)["released"]["n_hosts"].unique().tolist() == [HOSTS]
    assert len(query("FROM causes", many)) == 0  # the Leader makes its tables anew
    assert different(rolled_up(few), rolled_up(many)) == []


def test_compaction_writes_them_as_readers_saw_them(copies: list[Path]) -> None:
    before = [seen(folder / "releases") for folder in copies]
    for folder in copies:
        Compaction(folder / "releases").run(utc(DAY).date())
        rolled_up(folder / "releases")
    few, many = (files(folder / "releases") for folder in copies)
    assert different(few, many) == []
    assert different(before[1], seen(copies[1] / "releases")) == []
    assert len(query("FROM causes", copies[1] / "releases")) == 26


def test_cut_off_compaction_goes_on(copies: list[Path]) -> None:
    folder = copies[1] / "releases"
    before = seen(folder)

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Compaction(folder, checkpoint=stop).run(utc(DAY).date())
    assert different(before, seen(folder)) == []
    Compaction(folder).run(utc(DAY).date())
    assert different(before, seen(folder)) == []


def test_store_knows_its_windows_again(copies: list[Path]) -> None:
    for folder in copies:
        for path in (folder / "releases").glob("series=*/date=*/*.parquet"):
            path.unlink()
        with Store(folder / "store.duckdb", folder / "releases", CATALOGUE) as store:
            store.write(release(HOSTS, DAY + 180))
    few, many = (seen(folder / "releases") for folder in copies)
    assert different(few, many) == []
    assert len(many["windows"]) == 4
