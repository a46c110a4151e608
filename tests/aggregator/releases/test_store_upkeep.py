"""The Leader's store lets go of what is in packs, and still knows it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from aggregator.releases import window_files
from aggregator.releases.compaction import Compaction
from aggregator.releases.releases import query, read_causes, read_windows
from aggregator.releases.store import Store, StoreConflict
from aggregator.state.state_file import StorageUnavailable
from analytics import connect
from analytics.rollups import kept_roll_ups
from pointillist.cli import leader_command
from tests.aggregator.releases.pack_kit import TASK, noisy, suppressed
from tests.aggregator.releases.release_kit import CATALOGUE

SAMPLES = Path(__file__).parents[3] / "deploy" / "config"
DAY_S = 86_400
PATIENCE_S = 60.0


def opened(root: Path, keep_days: Mapping[str, int] | None = None) -> Store:
    return Store(root / "leader.duckdb", root / "releases", CATALOGUE, keep_days=keep_days)


@contextmanager
def run_as_configured(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> Iterator[Store]:
    """The store as `pointillist leader run` opens it, by a file that keeps windows for 20 days."""
    text = (SAMPLES / "leader.toml").read_text()
    text = text.replace("/var/lib/pointillist/releases/parquet", str(folder))
    text = text.replace("# [store.keep_days]", f"[store.keep_days]\n{TASK.series} = 20")
    (root / "leader.toml").write_text(text)
    monkeypatch.setattr("pointillist.cli.leader_command.log_to_stderr", lambda: None)
    monkeypatch.setattr(
        "aggregator.leader_process.run_leader",
        lambda config, **more: given.update(more, config=config),
    )
    leader_command.run(root / "leader.toml")
    kept_days, roll_ups = given["config"].keep_days, given["roll_ups"]
    path = root / "leader.duckdb"
    with Store(path, folder, CATALOGUE, keep_days=kept_days, roll_ups=roll_ups) as store:
        yield store


def tidied(store: Store, now_s: float, left: int) -> None:
    """Turn until the database has let go of all but so many windows."""
    until = time.monotonic() + PATIENCE_S
    while kept(store) != left:
        assert time.monotonic() < until, f"{kept(store)} windows left"
        store.tidy(now_s)
        time.sleep(0.01)


def kept(store: Store) -> int:
    counts = store._database.execute(
        "SELECT (SELECT count(*) FROM windows) + (SELECT count(*) FROM suppressed)"
    ).fetchone()
    assert counts is not None
    return int(counts[0])


def test_store_lets_go_of_packed_windows_but_the_newest(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for at in range(12):
            store.write(noisy(at, 60 * at))
        store.suppress(suppressed(900))
        store.write(noisy(50, DAY_S))
        tidied(store, DAY_S + 7200, 1)
        assert len(read_windows(tmp_path / "releases")) == 14
        assert [one.day.day for one in window_files.all_singles(tmp_path / "releases")] == [2]
        cells = store._database.execute("SELECT count(DISTINCT window_start) FROM cells")
        assert cells.fetchall() == [(1,)]


def test_store_still_refuses_another_vector_for_a_window_that_is_packed(tmp_path: Path) -> None:
    first = noisy(1, 0)
    other = first.vector.copy()
    other[7] += 1
    with opened(tmp_path) as store:
        store.write(first)
        store.write(noisy(2, 60))
        store.suppress(suppressed(900))
        store.write(noisy(3, DAY_S))
        tidied(store, DAY_S + 7200, 1)
        store.write(first)
        store.suppress(suppressed(900))
        for changed in (replace(first, vector=other), noisy(9, 0)):
            with pytest.raises(StoreConflict, match="another vector"):
                store.write(changed)
    with opened(tmp_path) as store:
        assert store.repair() == 0
        assert len(read_windows(tmp_path / "releases")) == 4


def test_causes_after_a_packed_window_have_their_trend(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(noisy(1, DAY_S - 120))
        store.write(noisy(2, DAY_S - 60))
        tidied(store, DAY_S + 7200, 1)
        store.write(noisy(3, DAY_S))
        rows = read_causes(tmp_path / "releases")
        assert set(rows.groupby("window_start").trend.first().iloc[1:]) != {"no window before"}
        assert rows[rows.window_start == "1970-01-02"].change.notna().any()


def test_a_crash_before_the_database_lets_go_writes_nothing_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for at in range(3):
            store.write(noisy(at, 60 * at))
        store.suppress(suppressed(900))
    Compaction(tmp_path / "releases").run(date(1970, 1, 3))
    with opened(tmp_path) as store:
        assert store.repair() == 0
        assert list(window_files.all_singles(tmp_path / "releases")) == []
        assert len(read_windows(tmp_path / "releases")) == 4


def test_store_removes_what_is_older_than_it_keeps(tmp_path: Path) -> None:
    with opened(tmp_path, {TASK.series: 20}) as store:
        for at in range(3):
            store.write(noisy(at, 60 * at))
            store.write(noisy(at + 5, 30 * DAY_S + 60 * at))
        store.suppress(suppressed(900))
        tidied(store, 31 * DAY_S + 7200, 1)
        starts = read_windows(tmp_path / "releases").window_start
        assert len(starts) == 3
        assert starts.min().day == 31
    with opened(tmp_path) as store:
        assert store.repair() == 0
        assert len(read_windows(tmp_path / "releases")) == 3


def test_leader_makes_roll_ups_before_it_removes_what_they_are_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = tmp_path / "releases", dict[str, Any]()
    with run_as_configured(tmp_path, folder, monkeypatch, given) as store:
        for at in range(3):
            store.write(noisy(at, 60 * at))
            store.write(noisy(at + 5, 30 * DAY_S + 60 * at))
        store.suppress(suppressed(900))
        tidied(store, 31 * DAY_S + 7200, 1)
    assert len(read_windows(folder)) == 3
    with connect(folder) as fleet:
        ended = fleet.outcomes("day")
    days = ended[ended["outcome"] != "rejected"].groupby("period_start")["windows"].sum()
    assert {str(start)[:10]: int(n) for start, n in days.items()} == {
        "1970-01-01": 4, "1970-01-31": 3,
    }  # fmt: skip


def test_nothing_is_removed_where_roll_ups_cannot_be_made_and_days_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = tmp_path / "releases", dict[str, Any]()
    with run_as_configured(tmp_path, folder, monkeypatch, given) as store:
        store.write(noisy(1, 0))
        store.write(noisy(2, 30 * DAY_S))
        (folder / "rollups").write_text("in the way")
        with pytest.raises(StorageUnavailable, match="rollups"):
            turned(store, time.monotonic() + PATIENCE_S, 31 * DAY_S + 7200)
    assert len(read_windows(folder)) == 2
    assert list(window_files.all_singles(folder)) == []


def test_leader_that_ends_does_not_wait_for_a_year_of_roll_ups(tmp_path: Path) -> None:
    folder = tmp_path / "releases"
    with opened(tmp_path) as store:
        for week in range(3):
            store.write(noisy(week, 7 * week * DAY_S))

    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept_roll_ups(folder).refresh(end)
    assert not (folder / "rollups" / "sums").exists()


def test_the_database_stops_growing(tmp_path: Path) -> None:
    sizes = []
    with opened(tmp_path) as store:
        for day in range(4):
            for at in range(10):
                store.write(noisy(at, day * DAY_S + 60 * at))
            tidied(store, (day + 1) * DAY_S + 7200, 1)
            store._database.execute("CHECKPOINT")
            sizes.append((tmp_path / "leader.duckdb").stat().st_size)
    assert max(sizes[2:]) <= 1.5 * max(sizes[:2])
    assert query("SELECT count(*) AS n FROM windows", tmp_path / "releases").n[0] == 4 * 10


def turned(store: Store, until: float, now_s: float = DAY_S + 7200) -> None:
    while time.monotonic() < until:
        store.tidy(now_s)
        time.sleep(0.01)


def test_a_file_that_is_damaged_is_told_and_the_store_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(noisy(1, 0))
        store.write(noisy(2, 60))
        damaged = next(window_files.all_singles(tmp_path / "releases")).path
        damaged.write_bytes(b"PAR1 no more PAR1")
        until = time.monotonic() + PATIENCE_S
        with pytest.raises(StorageUnavailable, match="releases"):
            turned(store, until)
        store.write(noisy(3, DAY_S))
