"""The last hour, renewed each minute: the sum of its windows that were released."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pandas.testing import assert_frame_equal

from aggregator.releases.compaction import Compaction
from analytics import NothingReleased, connect
from analytics.rollup_files import utc
from tests.aggregator.releases.release_kit import CATALOGUE, window
from tests.analytics.rollup_kit import write_releases, write_suppressed
from tests.analytics.test_rollups import DAY, HOUR, START, TASK, WIDE, minutes, release
from tests.running_sum import RunningSum


def test_last_hour_at_the_end_of_an_hour_is_that_hour_s_roll_up(tmp_path: Path) -> None:
    starts = minutes(START - 20 * 60, 80)
    write_releases(tmp_path, (release(s, 11_000 + s % 777, task=WIDE) for s in starts))
    other = window(WIDE, release(starts[-1], task=WIDE).vector, 12_000, starts[-1], cohort=1)
    day = replace(WIDE, series="day", window_s=DAY)
    write_releases(tmp_path, [other, release(START, task=day)])
    with connect(tmp_path) as fleet:
        for section, by_cohort in (
            ("kernel_mix", False), ("kernel_duration", True), ("incidents", False),
            ("host_network", True),
        ):  # fmt: skip
            hour = fleet.mix(section, "hour", since=utc(START), by_cohort=by_cohort)
            recent = fleet.recent(section, by_cohort=by_cohort)
            assert_frame_equal(recent, hour, rtol=1e-9, check_exact=False)
        columns = "series, cohort, section, name, share, told"
        newest, hours = (
            fleet.sql(f"SELECT {columns} FROM {view} WHERE {chosen} ORDER BY ALL")
            for view, chosen in (
                ("recent", "told"), ("hours", f"told AND period_start = TIMESTAMP '{utc(START)}'"),
            )
        )  # fmt: skip
        assert_frame_equal(newest, hours, rtol=1e-9, check_exact=False)
        assert len(fleet.sql("FROM quantiles('recent', 0.5)")) == 4


@pytest.mark.release
def test_last_hour_is_a_plain_sum_across_gaps_and_an_outage(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ends = dict(
        zip(minutes(START, 400), rng.choice(["released", "gone", "never"], 400), strict=True)
    )
    ends |= dict.fromkeys(minutes(START + 200 * 60, 90), "gone")  # an outage of an hour and a half
    released = {s: release(s, 11_000 + s % 777) for s, end in ends.items() if end == "released"}
    write_releases(tmp_path, released.values())
    gone = [start for start, end in ends.items() if end == "gone"]
    write_suppressed(tmp_path, TASK.series, gone, "batch_too_small")
    with connect(tmp_path) as fleet:
        rows = fleet.recent(since=utc(START))
        newest = fleet.recent()
    known = rows[~rows["suppressed"]].set_index(["period_start", "cell"])
    moments = {s for s, end in ends.items() if end != "never"}
    assert {*rows["period_start"]} == {utc(s + 60 - HOUR) for s in moments}
    for start in sorted(moments)[::7]:
        hour = [released[s] for s in minutes(start - 59 * 60, 60) if s in released]
        begin = utc(start + 60 - HOUR)
        if not hour:
            of = rows[rows["period_start"] == begin]
            assert of["suppressed"].all()
            assert (of["reason"] == "batch_too_small").all()
            continue
        expected = RunningSum(TASK, CATALOGUE)
        for one in hour:
            expected.add(one.vector, one.n, one.capacity)
        found = known.loc[begin]
        assert (found["windows"] == len(hour)).all()
        assert found["coverage"].to_numpy() == pytest.approx(len(hour) / 60)
        of_gone = sum(s in gone for s in minutes(start - 59 * 60, 60))
        assert (found["windows_suppressed"] == of_gone).all()
        for cell in expected.estimate():
            for name in ("value", "standard_error", "low", "high"):
                assert found[name][cell.cell] == pytest.approx(getattr(cell, name), rel=1e-9)
            assert found["share"][cell.cell] == pytest.approx(cell.share, abs=1e-6)
    last = rows[rows["period_start"] == rows["period_start"].max()].reset_index(drop=True)
    assert_frame_equal(newest, last, check_dtype=False)
    Compaction(tmp_path).run(utc(START + DAY).date())  # the same of packs, and of packs alone
    assert not list(tmp_path.glob("series=*/*/*.parquet"))
    with connect(tmp_path) as fleet:
        assert_frame_equal(fleet.recent(since=utc(START)), rows, rtol=1e-9, check_exact=False)
        assert_frame_equal(fleet.recent(), newest, rtol=1e-9, check_exact=False)
        early = fleet.recent(until=utc(START + HOUR))
    known = rows[rows["period_start"] == utc(START)].reset_index(drop=True)
    assert_frame_equal(early, known, check_dtype=False, rtol=1e-9, check_exact=False)


@pytest.mark.release
def test_last_minutes_are_compared_with_those_before_them(tmp_path: Path) -> None:
    starts = minutes(START, 200)
    step = {s: release(s) for s in starts}
    index = CATALOGUE.section("kernel_mix").index("gpu_time/gemm")
    at = TASK.slices()["kernel_mix"].start
    wall = 12_000 * 8 * 60_000 / TASK.sections[0].q
    for start in starts[-20:]:  # ten points of the time move from one family to idle
        vector = step[start].vector.copy()
        vector[at + index] -= round(0.1 * wall)
        vector[at + CATALOGUE.section("kernel_mix").index("idle")] += round(0.1 * wall)
        step[start] = window(TASK, vector, 12_000, start)
    write_releases(tmp_path, step.values())
    with connect(tmp_path) as fleet:
        rows = fleet.change(minutes=20)
        quiet = fleet.change(minutes=20, at=utc(starts[-20]))
        before, after = fleet.recent(minutes=120, until=utc(starts[-20])), fleet.recent(minutes=20)
        with pytest.raises(NothingReleased, match="expected a released window"):
            fleet.change(minutes=20, at=utc(START))
    assert set(rows["before_start"]) == {utc(starts[60])}
    assert set(rows["after_start"]) == {utc(starts[180])}
    told = rows[rows["told"]].set_index("name")
    assert {*told.index} == {"gemm", "idle"}
    assert told["change"].to_dict() == pytest.approx({"gemm": -0.111, "idle": 0.111}, abs=0.03)
    assert not quiet["told"].any()
    gemm = (frame.set_index("name")["share"]["gemm"] for frame in (before, after))
    assert told["before"]["gemm"] == next(gemm)
    assert told["after"]["gemm"] == next(gemm)
    # At the size of its own error a change of 20 minutes would take 4.75 squared times as long.
    row = told.loc["gemm"]
    error = (row["high"] - row["low"]) / 2 / 1.96
    z = abs(row["change"]) / error
    assert row["seen_after_s"] == pytest.approx((4.75 / z) ** 2 * 20 * 60, rel=0.1)
