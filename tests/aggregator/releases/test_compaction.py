"""Packs: every window reads the same to the last bit, once, whatever happens to the compaction."""

from __future__ import annotations

import json
import os
import shutil
import signal
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from aggregator.releases import packs, releases, window_files
from aggregator.releases.compaction import Compaction, CompactionUnderWay, RollUps
from aggregator.releases.period_pack import write_causes, write_period, write_suppressed
from aggregator.releases.release_files import BASIS
from aggregator.releases.releases import open_views, query, read_causes, read_releases, read_windows
from aggregator.releases.store import Store
from analytics import connect
from pointillist.cli import query as query_command
from tests.aggregator.releases.pack_kit import TASK, noisy, suppressed
from tests.aggregator.releases.release_kit import CATALOGUE

DAY_S = 86_400
TODAY = date(1970, 1, 9)
VIEWS = ("releases", "latest", "windows", "causes", "suppressed")
"""`releases` is `released` and the q-value."""


def written(root: Path) -> Path:
    """Three days of two weeks and two cohorts: released, suppressed and one of today."""
    with Store(root / "leader" / "store.duckdb", root / "releases", CATALOGUE) as store:
        for seed, start in enumerate((0, 60, DAY_S, 5 * DAY_S, 8 * DAY_S)):
            for cohort in (0, 1):
                store.write(noisy(2 * seed + cohort, start, cohort))
            store.suppress(suppressed(start + 600))
            store.suppress(suppressed(start + 660))
    return root / "releases"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "releases"))


def seen(folder: Path) -> dict[str, pd.DataFrame]:
    with open_views(folder) as database:
        return {view: database.sql(f"SELECT * FROM {view} ORDER BY ALL").df() for view in VIEWS}


def assert_same(got: dict[str, pd.DataFrame], want: dict[str, pd.DataFrame]) -> None:
    for view in VIEWS:
        pd.testing.assert_frame_equal(got[view], want[view], check_exact=True, obj=view)


@pytest.fixture(scope="module")
def before(pristine: Path) -> dict[str, pd.DataFrame]:
    return seen(pristine)


def test_compaction_changes_no_number_to_the_last_bit(
    folder: Path, before: dict[str, pd.DataFrame]
) -> None:
    assert before["releases"].share.notna().any()
    assert before["releases"].share.isna().any()
    done = Compaction(folder).run(TODAY)
    assert done.windows == 8 + 8 + 7  # releases, their causes, suppressed ones
    left = list(window_files.all_singles(folder))
    assert {single.day for single in left} == {TODAY}
    assert len(list(packs.all_packs(folder))) == 2
    assert_same(seen(folder), before)


def test_windows_are_counted_by_hour_wherever_they_lie(folder: Path) -> None:
    every = packs.windows_by_hour(folder)
    assert every.total() == 10
    assert every[TASK.series, datetime(1970, 1, 1)] == 4  # noqa: DTZ001
    Compaction(folder).run(TODAY)
    assert packs.windows_by_hour(folder) == every


def test_compaction_a_second_time_does_nothing(folder: Path) -> None:
    Compaction(folder).run(TODAY)
    files = sorted(folder.rglob("*"))
    done = Compaction(folder).run(TODAY)
    assert (done.windows, done.packs) == (0, 0)
    assert sorted(folder.rglob("*")) == files


def test_compaction_day_by_day_ends_as_at_once(
    folder: Path, before: dict[str, pd.DataFrame]
) -> None:
    for day in (2, 3, 7, 11):
        Compaction(folder).run(date(1970, 1, day))
        assert_same(seen(folder), before)
    assert list(packs.all_packs(folder, superseded=True)) == []


def test_compaction_takes_in_a_late_release_of_an_old_day(tmp_path: Path) -> None:
    folder = written(tmp_path)
    Compaction(folder).run(TODAY)
    with Store(tmp_path / "leader" / "store.duckdb", folder, CATALOGUE) as store:
        store.write(noisy(99, 180, 0))
    late = read_releases(folder, since=180, until=240)
    assert late.window_start.nunique() == 1
    want = seen(folder)
    Compaction(folder).run(TODAY)
    assert {single.day for single in window_files.all_singles(folder)} == {TODAY}
    assert_same(seen(folder), want)


def test_packed_rows_are_sorted_and_lack_what_follows(folder: Path) -> None:
    Compaction(folder).run(TODAY)
    pack = next(packs.all_packs(folder))
    table = pq.read_table(pack.path / packs.CELLS, partitioning=None)
    assert set(BASIS) <= set(table.schema.names)
    assert not {"value", "low", "share"} & set(table.schema.names)
    keys = table.select(["cohort", "section", "cell"]).to_pandas().agg(tuple, axis=1)
    assert (keys != keys.shift()).sum() == keys.nunique()


def test_older_releases_without_their_steps_are_packed_as_they_are(
    folder: Path, before: dict[str, pd.DataFrame]
) -> None:
    for single in window_files.all_singles(folder):
        table = pq.read_table(single.path, partitioning=None)
        pq.write_table(table.drop_columns([*BASIS, "bias_bound"]), single.path)
    old = seen(folder)
    assert old["releases"].bias_bound.isna().all()
    Compaction(folder).run(TODAY)
    assert all((pack.path / packs.PLAIN).exists() for pack in packs.all_packs(folder))
    assert_same(seen(folder), old)
    columns = ["value", "share_low", "share_high", "q_value"]
    assert seen(folder)["releases"][columns].equals(before["releases"][columns])


STEPS = ("pack written", "pack renamed", "pack before removed", "files removed")


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_each_window_is_read_once(
    folder: Path, before: dict[str, pd.DataFrame], step: str
) -> None:
    Compaction(folder).run(date(1970, 1, 2))
    pid = os.fork()
    if pid == 0:

        def checkpoint(at: str) -> None:
            if at == step:
                os.kill(os.getpid(), signal.SIGKILL)

        Compaction(folder, checkpoint=checkpoint).run(TODAY)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert_same(seen(folder), before)
    Compaction(folder).run(TODAY)
    assert_same(seen(folder), before)
    assert {single.day for single in window_files.all_singles(folder)} == {TODAY}
    assert not [path for path in folder.rglob(".*") if path.is_dir()]


def test_readers_go_on_while_a_folder_is_compacted(folder: Path) -> None:
    found: list[int] = []

    def read(step: str) -> None:
        del step
        found.append(query("SELECT count(*) AS n FROM windows", folder).n[0])

    every = query("SELECT count(*) AS n FROM windows", folder).n[0]
    Compaction(folder, checkpoint=read).run(TODAY)
    assert len(found) > 9
    assert set(found) == {every}


def test_a_question_whose_files_go_meanwhile_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = query("SELECT count(*) AS n FROM released", folder).n[0]
    opened = releases.open_views

    def compacted_once(*asked: Any) -> Any:
        database = opened(*asked)
        Compaction(folder).run(TODAY)
        return database

    monkeypatch.setattr(releases, "open_views", compacted_once)
    assert query("SELECT count(*) AS n FROM released", folder).n[0] == every


def test_one_compaction_at_a_time(folder: Path) -> None:
    def again(step: str) -> None:
        with pytest.raises(CompactionUnderWay, match="another process"):
            Compaction(folder).run(TODAY)
        raise KeyboardInterrupt(step)

    with pytest.raises(KeyboardInterrupt):
        Compaction(folder, checkpoint=again).run(TODAY)
    Compaction(folder).run(TODAY)


def test_old_windows_are_removed_once_their_roll_ups_exist(folder: Path) -> None:
    asked: list[tuple[str, date, date]] = []

    def not_yet(series: str, first: date, last: date) -> bool:
        asked.append((series, first, last))
        return False

    Compaction(folder).run(TODAY)
    every = len(read_windows(folder))
    keep = {TASK.series: 3, "another": 1}
    refreshed: list[object] = []
    roll_ups = RollUps(refreshed.append, not_yet)
    assert Compaction(folder, {}, roll_ups).run(TODAY).removed == len(refreshed) == 0
    assert Compaction(folder, keep, roll_ups).run(TODAY).removed == 0
    assert len(refreshed) == 1
    assert set(asked) == {(TASK.series, date(1969, 12, 29), date(1970, 1, 4))}
    assert len(read_windows(folder)) == every
    done = Compaction(folder, keep).run(TODAY)
    assert done.removed == 6 + 6 + 5
    assert read_windows(folder).window_start.min() == pd.Timestamp(5 * DAY_S, unit="s")
    assert read_causes(folder).window_start.min() == pd.Timestamp(5 * DAY_S, unit="s")


def test_windows_written_by_the_period_are_those_of_a_leader_after_compaction(
    pristine: Path, tmp_path: Path, before: dict[str, pd.DataFrame]
) -> None:
    for starts in ((0, 60, DAY_S), (5 * DAY_S, 8 * DAY_S)):
        places = {0: 0, 60: 1, DAY_S: 2, 5 * DAY_S: 3, 8 * DAY_S: 4}
        own = [noisy(2 * places[start], start, 0) for start in starts]
        write_period(tmp_path, CATALOGUE, own)
        write_causes(tmp_path, CATALOGUE, own)
        gone = [suppressed(start + more) for start in starts for more in (600, 660)]
        unique = {window.window_start_s: window for window in gone}
        write_suppressed(tmp_path, list(unique.values()))
    want = {view: rows[rows.cohort == 0].reset_index(drop=True) for view, rows in before.items()}
    assert_same(seen(tmp_path), want)
    assert list(window_files.all_singles(tmp_path)) == []


def test_store_command_packs_and_removes_what_its_roll_ups_have(folder: Path) -> None:
    runner, shown = CliRunner(), ["compact", str(folder), "--json"]
    packed = json.loads(runner.invoke(query_command.store_app, shown).stdout)
    assert packed["windows_packed"] == len(list(read_windows(folder).index)) + 10  # and causes
    days = len(query("SELECT DISTINCT window_start::DATE FROM windows", folder))
    done = runner.invoke(query_command.store_app, [*shown, "--keep-days", f"{TASK.series}=1"])
    assert json.loads(done.stdout)["windows_removed"] == packed["windows_packed"], done.stderr
    assert read_windows(folder).empty
    with connect(folder) as fleet:
        assert fleet.sql("SELECT DISTINCT period_start FROM days").shape[0] == days
    for wrong in ("minute", "minute=0", "=3", "minute=x"):
        refused = runner.invoke(query_command.store_app, [*shown, "--keep-days", wrong])
        assert "expected SERIES=DAYS" in str(refused.exception)


def test_store_command_says_that_a_folder_has_no_window(folder: Path) -> None:
    (folder.parent / "new").mkdir()
    packs.mark_new(folder.parent / "new")
    show = ["show", str(folder.parent / "new"), "--json"]
    shown = CliRunner().invoke(query_command.store_app, show)
    assert (shown.exit_code, shown.stdout) == (0, "[]\n")
    assert "no window yet" in shown.stderr
    assert (
        "no window yet"
        not in CliRunner().invoke(query_command.store_app, ["show", str(folder)]).stderr
    )
