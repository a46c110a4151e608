"""/metrics of the web application: the newest release of each series, numbers with errors."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator.releases.releases import read_releases
from aggregator.releases.store import Store
from tests.aggregator.releases.release_kit import CATALOGUE
from tests.web_kit import client, fill
from web import release_gauges

Numbers = dict[tuple[str, str, str], float]
NAMES = {
    "value": "pointillist_release_value",
    "standard_error": "pointillist_release_standard_error",
    "share": "pointillist_release_share_ratio",
    "q_value": "pointillist_release_q_value",
}


def scraped(text: str) -> dict[str, Numbers]:
    """Numbers of each metric by series, section and cell."""
    return {
        family.name: {
            (
                sample.labels.get("series", ""),
                sample.labels.get("section", ""),
                sample.labels.get("cell", ""),
            ): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


def asked(store: Path) -> dict[str, Numbers]:
    with client(store) as found:
        return scraped(found.get("/metrics").text)


def test_scrape_has_the_newest_release_with_its_errors(tmp_path: Path) -> None:
    store = fill(tmp_path, "a", 'b"\n\\', end_s=int(time.time()))
    found = asked(store)
    rows = read_releases(store)
    rows = rows[rows["window_start"] == rows["window_start"].max()]
    assert len(rows) > 500
    for column, metric in NAMES.items():
        known = rows[rows[column].notna()]
        expected = {(r.series, r.section, r.cell): getattr(r, column) for r in known.itertuples()}
        assert found[metric] == pytest.approx(expected), metric
    shares = found["pointillist_release_share_standard_error_ratio"]
    assert all(error > 0 and math.isfinite(error) for error in shares.values())
    assert found["pointillist_windows_released_ratio"]["a", "", ""] == 0.75


def test_cells_beyond_the_most_are_counted_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_gauges, "MOST_CELLS", 100)
    found = asked(fill(tmp_path, "a", "b", "c"))
    assert len(found["pointillist_release_value"]) == 100
    assert found["pointillist_release_cells_left_out"]["", "", ""] > 400
    assert found["pointillist_releases_left_out"]["", "", ""] == 2


def test_store_that_is_empty_or_broken_is_said(tmp_path: Path) -> None:
    with client(tmp_path / "none") as found:
        assert 'pointillist_store_state{state="empty"} 1.0' in found.get("/metrics").text
    with Store(tmp_path / "leader.duckdb", tmp_path / "releases", CATALOGUE):
        pass
    store = fill(tmp_path)
    next(store.glob("series=*/date=*/*.parquet")).write_bytes(b"not Parquet")
    with client(store) as found:
        text = found.get("/metrics").text
    assert 'pointillist_store_state{state="error"} 1.0' in text
    assert "pointillist_release_value{" not in text
