"""Roll-ups: the numbers of the sum of their windows, kept true as releases come late and go."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import analytics.rollups as rollups_module
from aggregator.protocol.released import ReleasedWindow
from aggregator.statistics.statistics import Cell
from analytics import connect
from analytics.release_source import FolderSource
from analytics.rollup_files import OUTCOMES, SUMS, RollupPeriod, RollupsUnavailable, file_of, utc
from analytics.rollups import has_rolled_up, refresh
from tests.aggregator.releases.release_kit import (
    CATALOGUE,
    GPUS,
    capacity,
    make_task,
    noise,
    true_steps,
    window,
)
from tests.analytics.rollup_kit import write_releases, write_suppressed
from tests.running_sum import RunningSum
from wire.task import Task

INTERVAL = ("value", "standard_error", "low", "high")
HOUR, DAY, WEEK = 3600, 86_400, 604_800
START = 2 * WEEK
HOSTS = 12_000
WIDE = make_task(windows=4 * WEEK // 60, start=START)
"""Every kind of section."""
TASK = replace(WIDE, sections=WIDE.sections[:1])
"""The mix alone, which is quicker."""
WALL = GPUS * 60_000
AMOUNTS = {
    ("kernel_mix", "gpu_time/gemm"): 0.5 * WALL,
    ("kernel_mix", "gpu_time/attention"): 0.2 * WALL,
    ("kernel_mix", "idle"): 0.2 * WALL,
    ("kernel_mix", "unmeasured"): 0.1 * WALL,
    ("kernel_mix_by_model", "H100/gpu_time/gemm"): 0.5 * WALL,
    ("kernel_mix_by_model", "H100/unmeasured"): 0.1 * WALL,
    ("kernel_duration", "2^20..2^21 ns"): 0.7 * WALL,
    ("host_network", "receive"): 200_000.0,
    ("incidents", "disk_io"): 3.2,
    ("incidents", "left_out"): 6.4,
}
"""Base units of one host in a window."""


def release(start: int, n: int = HOSTS, seed: int = 0, task: Task = TASK) -> ReleasedWindow:
    """One window of n hosts, noise included."""
    rng = np.random.default_rng([seed, start])
    names = {section.name for section in task.sections}
    sums = {cell: amount * n for cell, amount in AMOUNTS.items() if cell[0] in names}
    return window(task, true_steps(task, n, sums) + noise(task, n, rng), n, start)


def minutes(first: int, count: int) -> list[int]:
    return [first + 60 * at for at in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "releases").mkdir()
    return tmp_path / "releases"


def test_hour_has_the_numbers_of_the_sum_of_its_windows(folder: Path) -> None:
    windows = [release(start, 11_000 + start % 777, task=WIDE) for start in minutes(START, 12)]
    write_releases(folder, windows)
    expected = RunningSum(WIDE, CATALOGUE)
    for one in windows:
        expected.add(one.vector, one.n, one.capacity)
    with connect(folder) as fleet:
        rows = fleet.sql("SELECT * FROM hours")
    left_out = [cell for cell in expected.estimate() if cell.cell == "left_out"]
    assert left_out[0].value > 0  # and some of its windows are below
    assert (rows["windows"] == 12).all()
    assert rows["coverage"].to_numpy() == pytest.approx(12 / 60)
    found = {(row["section"], row["cell"]): row for row in rows.to_dict("records")}
    cells = expected.estimate()
    assert len(found) == len(rows) == len(cells)
    for cell in cells:
        row = found[cell.section, cell.cell]
        for name, number in in_hours(cell, len(windows)).items():
            assert row[name] == pytest.approx(number, rel=1e-6), (cell, name)
        assert row["bias_bound"] == pytest.approx(cell.bias_bound, rel=1e-9)
        # Of a model that nobody has a single window may have a share of noise; a sum has none.
        nobody = cell.section == "kernel_mix_by_model" and not cell.cell.startswith("H100")
        if nobody or cell.share is None:
            assert np.isnan(row["share"])
        else:
            for name in ("share", "share_low", "share_high"):
                assert row[name] == pytest.approx(getattr(cell, name), abs=1e-6), (cell, name)


def in_hours(cell: Cell, windows: int) -> dict[str, float]:
    """What an hour has of a cell: a mean is a ratio of sums, and so is its interval."""
    if cell.kind != "mean" or cell.whole is None:
        per = windows if cell.kind == "mean" else 1
        return {name: getattr(cell, name) / per for name in INTERVAL}
    assert cell.share is not None
    assert cell.share_low is not None
    assert cell.share_high is not None
    full = CATALOGUE.section(cell.section).coordinates[0].full_scale
    error = (cell.variance + cell.share**2 * cell.whole_variance) ** 0.5 / cell.whole
    shares = (cell.share, error, cell.share_low, cell.share_high)
    return dict(zip(INTERVAL, (full * share for share in shares), strict=True))


def test_model_that_nobody_has_gets_no_share_from_noise(folder: Path) -> None:
    task = replace(WIDE, sections=WIDE.sections[1:2])
    sums = {("kernel_mix_by_model", "A100/unmeasured"): -0.5 * HOSTS * WALL}
    vector = true_steps(task, HOSTS, sums) + noise(task, HOSTS, np.random.default_rng(8))
    write_releases(folder, (window(task, vector, HOSTS, start) for start in minutes(START, 2)))
    with connect(folder) as fleet:
        rows = fleet.mix(period="hour", model="A100")
    assert rows["share"].isna().all()
    assert (rows["reason"] == "few_hosts").all()


def test_days_and_weeks_are_the_sums_of_their_hours(folder: Path) -> None:
    starts = [START + at * 6 * HOUR for at in range(36)]
    write_releases(folder, (release(start) for start in starts))
    with connect(folder) as fleet:
        week = fleet.mix(period="week").set_index("cell")
        days = fleet.mix(period="day")
        hours = fleet.mix(period="hour")
    in_week = [start for start in starts if start < START + WEEK]
    assert len(hours) == len(starts) * 68
    assert week.loc["idle"].windows.tolist() == [len(in_week), len(starts) - len(in_week)]
    for frame in (days, hours):
        idle = frame[(frame.cell == "idle") & (frame.period_start < utc(START + WEEK))]
        assert idle.value.sum() == pytest.approx(week.loc["idle"].value.iloc[0])
        squares = (idle.standard_error**2).sum()
        assert squares**0.5 == pytest.approx(week.loc["idle"].standard_error.iloc[0])


def test_nothing_is_done_where_nothing_is_new(folder: Path) -> None:
    write_releases(folder, [release(START)])
    rollups = folder / "rollups"
    assert refresh(folder, rollups) == 1
    before = {path: path.stat().st_ino for path in rollups.rglob("*.parquet")}
    assert len(before) == 8
    assert refresh(folder, rollups) == 0
    assert {path: path.stat().st_ino for path in rollups.rglob("*.parquet")} == before


def test_late_release_is_added_to_its_hour_and_to_no_other(folder: Path) -> None:
    *starts, late = minutes(START, 6)
    write_releases(folder, (release(start) for start in [*starts, START + DAY]))
    rollups = folder / "rollups"
    refresh(folder, rollups)
    other = file_of(rollups, SUMS, RollupPeriod.HOUR, utc(START + DAY))
    before = other.stat().st_ino
    write_releases(folder, [release(late)])
    refresh(folder, rollups)
    assert other.stat().st_ino == before
    with connect(folder) as fleet:
        hour = fleet.mix(period="hour", until=utc(START + HOUR))
        week = fleet.mix(period="week")
    whole = RunningSum(TASK, CATALOGUE)
    for start in minutes(START, 6):
        whole.add(release(start).vector, HOSTS, capacity(HOSTS))
    idle = next(cell for cell in whole.estimate() if cell.cell == "idle")
    assert hour[hour["cell"] == "idle"]["value"].iloc[0] == pytest.approx(idle.value)
    assert (hour["windows"] == 6).all()
    assert (week["windows"] == 7).all()


def test_roll_ups_outlive_the_windows_that_they_are_made_of(folder: Path) -> None:
    write_releases(folder, (release(start) for start in minutes(START, 4)))
    rollups = folder / "rollups"
    refresh(folder, rollups)
    for path in folder.glob("series=*/date=*/*.parquet"):
        path.unlink()
    assert refresh(folder, rollups) == 0
    write_releases(folder, [release(START + 5 * HOUR)])
    assert refresh(folder, rollups) == 1
    with connect(folder) as fleet:
        assert sorted(set(fleet.mix(period="hour")["windows"])) == [1, 4]
        for period in (RollupPeriod.DAY, RollupPeriod.WEEK, RollupPeriod.EIGHT_WEEKS):
            assert (fleet.mix(period=period)["windows"] == 5).all(), period


def test_refresh_that_was_cut_off_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_releases(folder, (release(START + at * WEEK) for at in range(3)))
    rollups, added = folder / "rollups", rollups_module._add

    def cut_off(releases: Path, folder: Path, hours: Collection[datetime]) -> None:
        if utc(START + WEEK) in hours:
            raise KeyboardInterrupt
        added(releases, folder, hours)

    with monkeypatch.context() as patch:
        patch.setattr(rollups_module, "_add", cut_off)
        with pytest.raises(KeyboardInterrupt):
            refresh(folder, rollups)
    assert refresh(folder, rollups) == 2
    with connect(folder) as fleet:
        assert fleet.mix(period="week")["windows"].tolist() == [1] * 3 * 68


def test_days_may_be_removed_once_roll_ups_have_them(folder: Path) -> None:
    rollups, days = folder / "rollups", (utc(START).date(), utc(START).date())
    write_releases(folder, [release(START), release(START + DAY)])
    assert not has_rolled_up(folder, rollups, TASK.series, *days)
    refresh(folder, rollups)
    assert has_rolled_up(folder, rollups, TASK.series, *days)
    write_releases(folder, [release(START + 60)])
    assert not has_rolled_up(folder, rollups, TASK.series, *days)
    assert has_rolled_up(folder, rollups, TASK.series, *[day + timedelta(days=1) for day in days])
    assert has_rolled_up(folder, rollups, "another", *days)


def test_reader_without_roll_ups_begins_with_those_beside_the_releases(
    folder: Path, tmp_path: Path
) -> None:
    write_releases(folder, [release(START), release(START + DAY)])
    refresh(folder, folder / "rollups")
    for path in folder.glob(f"series=*/date={utc(START):%Y-%m-%d}/*"):
        path.unlink()
    write_releases(folder, [release(START + DAY + 60)])
    with connect(folder, rollups=tmp_path / "own") as fleet:
        windows = fleet.outcomes("day").set_index("period_start")["windows"]
    assert windows.to_dict() == {utc(START): 1, utc(START + DAY): 2}


def test_windows_of_periods_are_counted_as_far_as_roll_ups_have_them(folder: Path) -> None:
    write_releases(folder, [release(START), release(START + HOUR), release(START + DAY)])
    source, hour, day = FolderSource(folder, max_age_s=0), RollupPeriod.HOUR, RollupPeriod.DAY
    spans = [(hour, START, START + HOUR), (day, START, START + DAY), (day, None, None)]
    assert [source.windows_in(*span) for span in spans] == [1, 2, 3]
    # A period that only begins after the first moment, and one that begins before the last.
    assert source.windows_in(day, START + 1, START + DAY + 1) == 3
    write_releases(folder, [release(START + 60)])
    assert [source.windows_in(*span) for span in spans] == [2, 3, 4]
    another = FolderSource(folder, max_age_s=0)
    write_releases(folder, [release(START + 120)])
    assert another.refresh() == 1
    assert source.windows_in(day) == another.windows_in(day) == 5
    source.close()
    another.close()


def test_releases_of_before_left_out_was_told_have_no_bias_bound(folder: Path) -> None:
    write_releases(folder, (release(start, task=WIDE) for start in minutes(START, 2)))
    (first, _) = sorted(folder.glob("series=*/date=*/*.parquet"))
    rows = pq.read_table(first, partitioning=None)
    pq.write_table(rows.filter(pc.not_equal(rows["cell"], "left_out")), first)
    with connect(folder) as fleet:
        rows = fleet.mix("cause", "hour")
    assert rows["bias_bound"].isna().all()
    assert (rows["standard_error"] > 0).all()


def test_hour_is_not_made_anew_from_fewer_windows_than_it_has(folder: Path) -> None:
    write_releases(folder, (release(start) for start in minutes(START, 4)))
    rollups = folder / "rollups"
    refresh(folder, rollups)
    for path in folder.glob("series=*/date=*/*.parquet"):
        path.unlink()
    (rollups / "hours.json").unlink()
    write_releases(folder, [release(START + 180)])
    assert refresh(folder, rollups) == 1
    with connect(folder) as fleet:
        for period in RollupPeriod:
            assert (fleet.mix(period=period)["windows"] == 4).all(), period


def test_suppressed_windows_are_counted_with_their_reason(folder: Path) -> None:
    write_releases(folder, (release(start) for start in minutes(START, 45)))
    write_suppressed(folder, TASK.series, minutes(START + 45 * 60, 10), "batch_too_small")
    write_suppressed(folder, TASK.series, minutes(START + 55 * 60, 5), "impossible_sum")
    write_suppressed(folder, TASK.series, minutes(START + HOUR, 60), "operator_share")
    with connect(folder) as fleet:
        rows = fleet.mix(period="hour")
        outcomes = fleet.outcomes("hour")
        day = fleet.mix(period="day")
    first, second = (rows[rows.period_start == utc(START + at)] for at in (0, HOUR))
    assert len(first) == len(second) == 68
    assert (first.coverage == 0.75).all()
    assert (first.windows_suppressed == 15).all()
    assert (first.reason == "batch_too_small").all()
    assert not first.suppressed.any()
    assert second.suppressed.all()
    assert (second.reason == "operator_share").all()
    assert second.value.isna().all()
    assert (second.coverage == 0).all()
    assert not second.told.any()
    assert day.windows_suppressed.unique().tolist() == [75]
    released = outcomes[outcomes.outcome == "released"].iloc[0]
    assert (released.windows, released.lag_max_s) == (45, 2.5)
    rejected = outcomes[outcomes.outcome == "rejected"].iloc[0]
    assert (rejected.reason, rejected.reports) == ("late", 45 * 200)


def test_cohorts_are_added_up_or_kept_apart(folder: Path) -> None:
    one, other = release(START), release(START, seed=1)
    write_releases(folder, [one])
    write_releases(folder, [window(TASK, other.vector, HOSTS, START, cohort=1)])
    with connect(folder) as fleet:
        together = fleet.mix(period="hour").set_index("cell")
        apart = fleet.mix(period="hour", by_cohort=True)
    idle = apart[apart.cell == "idle"]
    assert idle.cohort.tolist() == [0, 1]
    assert together.loc["idle"].value == pytest.approx(idle.value.sum())
    assert (together["coverage"] == 1 / 60).all()
    assert together.loc["idle"]["hosts"] == HOSTS


def test_coverage_counts_the_cohorts_of_each_series_by_itself(folder: Path) -> None:
    other = replace(TASK, series="another")
    write_releases(folder, [release(START), window(TASK, release(START).vector, HOSTS, START, 1)])
    write_releases(folder, [release(START, task=other)])
    with connect(folder) as fleet:
        rows = fleet.mix(period="hour")
        gpus = fleet.gpus()
    assert rows.groupby("series")["coverage"].max().tolist() == pytest.approx([1 / 60, 1 / 60])
    assert gpus.per_host == pytest.approx(GPUS)


def test_means_are_weighted_by_hosts_and_time(folder: Path) -> None:
    index = next(at for at, spec in enumerate(WIDE.sections) if spec.name == "host_network")
    minute = replace(WIDE, sections=WIDE.sections[index : index + 1])
    long = replace(minute, window_s=600)
    cell = ("host_network", "receive")
    for task, start, hosts, each in (
        (minute, START, 10_000, 100_000),
        (long, START + 600, 12_000, 40_000),
    ):
        vector = true_steps(task, hosts, {cell: each * hosts})
        write_releases(folder, [window(task, vector, hosts, start)])
    with connect(folder) as fleet:
        row = fleet.mix("host_network", "hour").set_index("name").loc["receive"]
    share = (100_000 * 10_000 * 60 + 40_000 * 12_000 * 600) / (10_000 * 60 + 12_000 * 600) / 1e6
    assert row["share"] == pytest.approx(share, rel=1e-3)
    assert row["value"] == pytest.approx(share * 50e9, rel=1e-3)  # bytes/s of full scale
    assert row["coverage"] == pytest.approx(660 / 3600)


def test_roll_ups_of_a_later_format_are_refused(folder: Path) -> None:
    write_releases(folder, [release(START)])
    (folder / "rollups").mkdir()
    (folder / "rollups" / "hours.json").write_text('{"format": 2}')
    with connect(folder) as fleet, pytest.raises(RollupsUnavailable, match="expected format 1"):
        fleet.mix(period="hour")


def test_outcomes_have_files_of_their_own(folder: Path) -> None:
    write_releases(folder, [release(START)])
    refresh(folder, folder / "rollups")
    for period in RollupPeriod:
        assert file_of(folder / "rollups", OUTCOMES, period, utc(START)).exists()
