"""`pointillist.connect`: frames, SQL over the same views, budget, and the pages' frames."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import pointillist
from aggregator.releases.packs import mark_new
from aggregator.releases.release_files import SimulatedMark, write_mark
from aggregator.releases.releases import QueryForbidden
from analytics import VIEW_MEANINGS, FleetReleases, NothingReleased, connect
from analytics.spent_budget import series_task, tasks_in
from pointillist.cli import main
from tests.aggregator.releases.release_kit import CATALOGUE
from tests.analytics.rollup_kit import write_releases
from tests.analytics.test_rollups import DAY, START, TASK, WEEK, WIDE, release
from wire.rejection import ReportRejected

SERIES = "every-kind"


@pytest.fixture
def fleet(folder: Path) -> Iterator[FleetReleases]:
    with connect(folder) as opened:
        yield opened


def test_simulated_releases_say_so(fleet: FleetReleases, tmp_path: Path) -> None:
    assert fleet.simulated is None
    write_mark(tmp_path, SimulatedMark("steady", "default", 400, 3_200, "noise", 5, 8, ""))
    with connect(tmp_path) as played:
        assert played.simulated is not None
        assert played.simulated.startswith("simulated: 400 hosts of the scenario steady")


def test_change_compares_the_newest_whole_week_with_the_one_before(fleet: FleetReleases) -> None:
    rows = fleet.change("family")
    assert str(rows["before_start"].iloc[0]) == "1970-01-15 00:00:00"
    assert str(rows["after_start"].iloc[0]) == "1970-01-22 00:00:00"
    assert len(rows) == 68
    assert rows["coverage_before"].iloc[0] == pytest.approx(3 * 60 / WEEK)
    by_model = fleet.change("family", model="H100")
    assert set(by_model["model"]) == {"H100"}
    any_two = fleet.change("family", at=START + 2 * WEEK, against=START)
    assert str(any_two["after_start"].iloc[0]) == "1970-01-29 00:00:00"


def test_newest_is_the_last_period_that_has_ended(fleet: FleetReleases) -> None:
    rows = fleet.newest("family")
    assert set(rows["period_start"]) == {pd.Timestamp("1970-01-22")}
    assert set(fleet.newest("family", model="H100")["model"]) == {"H100"}
    with pytest.raises(NothingReleased, match="hardware_faults: expected a released week"):
        fleet.newest("fault")


def test_models_are_compared_in_the_same_period(fleet: FleetReleases) -> None:
    rows = fleet.compare_models("H100", "A100").set_index("cell")
    assert (rows["before_start"] == rows["after_start"]).all()
    back = fleet.compare_models("A100", "H100", at=START + WEEK).set_index("cell")
    by_model = fleet.newest("family", by_model=True).set_index("cell")["share"]
    for cell in ("gpu_time/gemm", "idle"):
        assert rows["after"][cell] == back["before"][cell] == by_model[f"H100/{cell}"]
    assert rows["before"].isna().all()
    assert rows["suppressed"].all()
    with pytest.raises(ValueError, match=r"model: expected one of A100, .*, got 'H1000'"):
        fleet.compare_models("H1000", "A100")


def test_names_that_are_none_are_told(fleet: FleetReleases) -> None:
    with pytest.raises(ValueError, match="by: expected one of family, application"):
        fleet.mix("colour")
    with pytest.raises(ValueError, match="period: expected one of hour, day"):
        fleet.mix(period="fortnight")
    with pytest.raises(ValueError, match="GPU models: expected by = family"):
        fleet.mix("duration", by_model=True)
    with pytest.raises(NothingReleased, match="hardware_faults: expected a released week"):
        fleet.change("fault")


def test_every_view_has_the_columns_that_its_schema_names(fleet: FleetReleases) -> None:
    for view, meanings in VIEW_MEANINGS.items():
        rows = fleet.sql(f"SELECT * FROM {view} LIMIT 1")
        assert list(rows.columns) == list(meanings), view
    rows = fleet.sql("SELECT r.cell FROM releases r JOIN weeks w USING (series, section, cell)")
    assert len(rows)
    assert len(fleet.sql("SELECT section FROM changes")) > 200
    with pytest.raises(QueryForbidden):
        fleet.sql("CREATE TABLE hours AS SELECT 1")
    with pytest.raises(QueryForbidden):
        fleet.sql("SELECT * FROM hours, read_csv('/etc/passwd')")


def test_name_stands_once_in_each_section_of_a_period(fleet: FleetReleases) -> None:
    week = "section = 'kernel_mix' AND period_start = '1970-01-22'"
    rows = fleet.sql(f"SELECT name, share FROM weeks WHERE {week}").set_index("name")["share"]
    assert len(rows) == 68
    cells = fleet.newest("family").set_index("cell")["share"]
    assert rows["gemm"] == cells["gpu_time/gemm"]
    assert rows["gemm_by_launches"] == cells["launch_share/gemm"]
    for view, start in (("weeks", "period_start"), ("changes", "after_start")):
        twice = "GROUP BY ALL HAVING count(*) > 1"
        keys = f"series, cohort, {start}, section, model, name"
        assert fleet.sql(f"SELECT {keys} FROM {view} {twice}").empty, view


def test_bins_have_their_place_and_their_ends_in_numbers(fleet: FleetReleases) -> None:
    columns = "section, bin, bin_low, bin_high, bin_unit"
    rows = fleet.sql(f"SELECT DISTINCT {columns} FROM weeks WHERE bin IS NOT NULL ORDER BY ALL")
    expected = [
        (name, place, low, high, bins.unit)
        for name, bins in (
            (name, CATALOGUE.section(name).bins) for name in ("gpu_utilisation", "kernel_duration")
        )
        if bins is not None
        for place, (low, high) in enumerate(
            zip(bins.edges, [*bins.edges[1:], None], strict=True)
        )
    ]  # fmt: skip
    found = rows.astype(object).where(rows.notna(), None).itertuples(index=False, name=None)
    assert list(found) == expected
    for rows in (fleet.newest("duration"), fleet.mix("duration", until=START + WEEK)):
        assert rows["bin"].tolist() == list(range(32))
    assert fleet.newest("family")["bin"].isna().all()


def test_period_that_holds_nothing_says_which_do(tmp_path: Path) -> None:
    task = replace(WIDE, window_s=DAY)
    write_releases(tmp_path, [release(START, task=task), release(START + DAY, task=task)])
    with connect(tmp_path) as fleet:
        assert fleet.durations()["period_s"].tolist() == [DAY] * 2 * 32
        held = r"kernel_duration: expected a released hour, got none; it is there by day, week, "
        with pytest.warns(UserWarning, match=held):
            assert fleet.durations("hour").empty
        with pytest.raises(NothingReleased, match=held):
            fleet.newest("duration", "hour")
        assert fleet.durations(since=START + WEEK).empty


def test_budget_is_what_the_windows_of_a_week_cost(fleet: FleetReleases) -> None:
    fleet.tasks = (series_task(TASK),)
    (row,) = fleet.budget().to_dict("records")
    assert (row["series"], row["window_s"], row["epsilon"]) == (SERIES, 60, 2.0)
    # The week up to the last suppressed window: one before it, two at its ends, three suppressed.
    assert (row["windows_ended"], row["windows_suppressed"]) == (5, 3)
    assert row["weight"] == pytest.approx(0.4)
    assert row["spent"] == pytest.approx(0.4 * 5 / 10_081)


def test_budget_without_tasks_says_what_ended(fleet: FleetReleases) -> None:
    (row,) = fleet.budget().to_dict("records")
    assert row["windows_ended"] == 5
    assert row["spent"] != row["spent"]


def test_tasks_are_read_from_a_folder_of_signed_ones(tmp_path: Path) -> None:
    from aggregator.enrolment.tasks import sign_task
    from privacy.signing import SigningKey

    leader, helper = SigningKey.generate(), SigningKey.generate()
    for version in (1, 2):
        signed = sign_task(replace(TASK, version=version), leader, helper)[1]
        (tmp_path / f"{version}.task").write_bytes(signed)
    (task,) = tasks_in(tmp_path)
    assert (task.series, task.windows) == (SERIES, 10_081)
    with pytest.raises(FileNotFoundError, match="no folder of signed tasks"):
        tasks_in(tmp_path / "none")
    (tmp_path / "short.task").write_bytes(b"none")
    with pytest.raises(ReportRejected, match=r"in short\.task, got 4"):
        tasks_in(tmp_path)


def test_frames_hold_each_period_that_was_released(fleet: FleetReleases) -> None:
    weeks = fleet.mix("family", "week")
    assert str(weeks["period_start"].max()) == "1970-01-29 00:00:00"
    assert weeks.groupby("period_start").size().tolist() == [68] * 3
    assert set(fleet.mix("family", "week", by_model=True)["model"]) >= {"H100", "A100"}
    assert len(fleet.change("family", "week")) == 68
    assert fleet.durations("day")["bin"].max() == 31
    assert fleet.applications().empty
    assert fleet.faults().empty


def test_outcomes_have_reasons_lag_and_rejections(fleet: FleetReleases) -> None:
    ended = fleet.outcomes("week")
    suppressed = ended[ended["outcome"] == "suppressed"]
    assert suppressed["reason"].tolist() == ["batch_too_small"]
    settled = ended[ended["outcome"] != "rejected"]
    assert (settled["lag_s"] / settled["windows"]).max() == pytest.approx(40.0)
    assert ended[ended["outcome"] == "rejected"]["reports"].sum() == 6 * 200


def test_causes_have_the_fleets_gpus_and_their_price(fleet: FleetReleases) -> None:
    causes = fleet.causes()
    assert causes.groupby("window_start").size().tolist() == [14] * 6  # 13 causes and their sum
    assert causes["gpus_per_host"].iloc[0] == pytest.approx(8)
    assert causes["price"].iloc[0] == pytest.approx(2.5)  # all of them are H100


def test_frames_of_a_new_store_are_empty(tmp_path: Path) -> None:
    mark_new(tmp_path)
    with connect(tmp_path) as fleet:
        for frame in (fleet.mix(), fleet.durations(), fleet.causes(), fleet.outcomes()):
            assert frame.empty
        assert fleet.budget().empty


def test_connect_says_what_it_cannot_open(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder of releases"):
        pointillist.connect(tmp_path / "none")
    with pytest.raises(ValueError, match="expected a server beside them, got a folder"):
        pointillist.connect(tmp_path, token_file=tmp_path / "token")


def test_importing_the_command_loads_no_reader() -> None:
    slow = "{'pandas', 'duckdb', 'analytics'}"
    code = f"import pointillist, sys; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_query_command_has_the_same_views(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT count(*) AS cells FROM weeks WHERE section = 'kernel_mix'"
    monkeypatch.setattr(
        "sys.argv", ["pointillist", "query", sql, "--folder", str(folder), "--json"]
    )
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out) == [{"cells": 3 * 68}]


def test_roll_ups_of_a_folder_of_others_are_kept_by_the_reader(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.rollup_files.os.access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with connect(folder) as fleet:
        assert len(fleet.mix(period="week")) == 3 * 68
    assert list(tmp_path.rglob("hours.json"))
