"""Files of whole months: they answer as their days do, and never outlive a change of one."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

from aggregator.releases.releases import QueryRefused
from analytics import connect
from analytics.release_source import FolderSource
from analytics.rollup_files import OUTCOMES, SUMS, RollupPeriod
from analytics.rollups import files_to_read, refresh
from tests.analytics.rollup_kit import write_releases, write_suppressed
from tests.analytics.test_rollups import DAY, HOUR, START, release

FEBRUARY = 31 * DAY
MARCH = datetime(1970, 3, 1)  # noqa: DTZ001
GEMM = "section = 'kernel_mix' AND cell = 'gpu_time/gemm'"
QUESTIONS = (
    f"SELECT period_start, share, share_low, share_high FROM hours WHERE {GEMM} ORDER BY ALL",
    f"SELECT * FROM hours WHERE {GEMM} ORDER BY ALL",
    "SELECT section, count(*) FILTER (told) AS cells FROM hours GROUP BY ALL ORDER BY ALL",
    "FROM hours ORDER BY ALL",
    "SELECT * FROM outcomes ORDER BY ALL",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two days of January, one of them with an hour of nothing, and one of February."""
    releases = tmp_path / "releases"
    releases.mkdir()
    starts = [START, START + HOUR, START + 3 * DAY, FEBRUARY + 2 * DAY]
    write_releases(releases, [release(start) for start in starts])
    write_suppressed(releases, "minute", [START + 60, START + 2 * HOUR], "too_few_reports")
    return releases


def months(rollups: Path) -> list[str]:
    return sorted(str(path.parent.relative_to(rollups)) for path in rollups.rglob("month=*/*"))


def answers(folder: Path, rollups: Path) -> list[pd.DataFrame]:
    with connect(folder, rollups=rollups) as fleet:
        asked = [fleet.sql(question) for question in QUESTIONS]
        return [*asked, fleet.mix(period="hour"), fleet.mix(period="hour", until="1970-01-20")]


def test_month_that_is_over_answers_as_its_days(folder: Path) -> None:
    rollups = folder / "rollups"
    refresh(folder, rollups)
    assert months(rollups) == ["outcomes/hour/month=1970-01", "sums/hour/month=1970-01"]
    found = answers(folder, rollups)
    for month in rollups.rglob("month=*"):
        shutil.rmtree(month)
    source = FolderSource(folder, rollups)
    source._look = lambda: None  # type: ignore[method-assign]  # it would write them again
    for question, frame in zip(QUESTIONS, found, strict=False):
        pd.testing.assert_frame_equal(source.sql(question, {}), frame)
    source.close()


def test_month_is_read_where_all_of_it_is_asked_for(folder: Path) -> None:
    rollups = folder / "rollups"
    refresh(folder, rollups)
    all_of_it = files_to_read(rollups, SUMS, RollupPeriod.HOUR)
    assert [path.parent.name for path in all_of_it] == ["month=1970-01", "date=1970-02-03"]
    since = datetime(1970, 1, 1, 1)  # noqa: DTZ001
    part = files_to_read(rollups, OUTCOMES, RollupPeriod.HOUR, since, MARCH)
    assert {path.parent.name for path in part} == {
        "date=1970-01-15", "date=1970-01-18", "date=1970-02-03",
    }  # fmt: skip


def test_late_window_is_in_what_is_read_of_its_month(folder: Path) -> None:
    rollups = folder / "rollups"
    refresh(folder, rollups)
    write_releases(folder, [release(START + 2 * HOUR)])
    with connect(folder, rollups=rollups) as fleet:
        rows = fleet.sql(QUESTIONS[0])
    assert len(rows) == 5
    assert months(rollups) == ["outcomes/hour/month=1970-01", "sums/hour/month=1970-01"]
    assert rows["share"].notna().all()


def test_month_goes_before_one_of_its_days_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollups = folder / "rollups"
    refresh(folder, rollups)
    write_releases(folder, [release(START + 2 * HOUR)])
    monkeypatch.setattr("analytics.rollups._write_months", lambda *_: None)  # cut off before
    refresh(folder, rollups)
    assert months(rollups) == []
    with connect(folder, rollups=rollups) as fleet:
        assert len(fleet.sql(QUESTIONS[0])) == 5


def test_roll_ups_of_before_get_files_of_months(folder: Path) -> None:
    rollups = folder / "rollups"
    refresh(folder, rollups)
    for month in rollups.rglob("month=*"):
        shutil.rmtree(month)
    assert refresh(folder, rollups) == 0
    assert months(rollups) == ["outcomes/hour/month=1970-01", "sums/hour/month=1970-01"]


def test_copy_of_roll_ups_makes_months_of_its_own_days(folder: Path, tmp_path: Path) -> None:
    refresh(folder, folder / "rollups")
    stale = folder / "rollups" / "sums" / "hour" / "month=1970-01" / "rows.parquet"
    stale.write_bytes(b"of other days")
    refresh(folder, tmp_path / "own")
    assert len(answers(folder, tmp_path / "own")[0]) == 4


def test_query_that_fails_for_another_reason_says_that_one(folder: Path) -> None:
    with connect(folder) as fleet, pytest.raises(QueryRefused, match="mine"):
        fleet.sql("SELECT error('mine') FROM hours")
