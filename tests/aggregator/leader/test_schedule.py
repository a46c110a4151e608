"""Every window that a task names ends: released, or suppressed with its reason and count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest

from aggregator.leader.window_closing import RESEND_S, Schedule
from aggregator.protocol.interfaces import BatchKey, TaskSeen
from aggregator.protocol.released import SuppressedWindow
from aggregator.releases.releases import query, read_windows, windows_without_an_end
from aggregator.releases.store import Store
from aggregator.releases.window_files import COARSE
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, true_steps, window
from tests.protocol_kit import T0, WINDOW_S, Fleet, World, build_world, honest_reports, open_epochs

DAY_S = 86_400


def over(world: World, now_s: float) -> list[int]:
    """The windows that have to end, nobody having reported."""
    schedule = Schedule(world.directory())
    return [key.window for key in chain.from_iterable(schedule.over([], now_s))]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(build_world(10), tmp_path)
    made.send_epochs(open_epochs(made.world))
    yield made
    made.state.close()


def test_task_names_its_windows_from_its_acceptance_on() -> None:
    assert over(build_world(), T0 + WINDOW_S - 1) == []
    assert over(build_world(), T0 + 2 * WINDOW_S) == [T0, T0 + WINDOW_S]
    earlier = build_world(first_window=T0 - 100 * WINDOW_S)
    assert over(earlier, T0 + 2 * WINDOW_S) == [T0, T0 + WINDOW_S]


def test_task_names_no_window_after_its_last_or_its_expiry() -> None:
    late = T0 + 100 * WINDOW_S
    assert over(build_world(last_window=T0 + 2 * WINDOW_S), late)[-1] == T0 + 2 * WINDOW_S
    assert over(build_world(expiry=T0 + 3 * WINDOW_S), late)[-1] == T0 + WINDOW_S


def test_next_version_takes_over_with_the_window_after_its_acceptance() -> None:
    world = build_world()
    directory = world.directory()
    newer = world.resign(version=2)
    directory.add_task(newer.task_bytes, T0 + 2.5 * WINDOW_S)
    (keys,) = Schedule(directory).over([], T0 + 5 * WINDOW_S)
    assert [(key.task_id, (key.window - T0) // WINDOW_S) for key in keys] == [
        *[(world.task_id, number) for number in range(3)],
        *[(newer.task_id, number) for number in range(3, 5)],
    ]


def test_window_without_hosts_on_the_roster_is_not_named() -> None:
    world = build_world()
    directory = world.directory()
    (roster,) = directory.rosters.values()
    roster.effective_from = T0 + 2 * WINDOW_S
    (keys,) = Schedule(directory).over([], T0 + 4 * WINDOW_S)
    assert [key.window for key in keys] == [T0 + 2 * WINDOW_S, T0 + 3 * WINDOW_S]


def test_reported_window_comes_in_its_order_and_once() -> None:
    world = build_world()
    key = BatchKey(world.task_id, 0, T0 + WINDOW_S)
    (keys,) = Schedule(world.directory()).over([key], T0 + 3 * WINDOW_S)
    assert [one.window for one in keys] == [T0, T0 + WINDOW_S, T0 + 2 * WINDOW_S]


def test_windows_that_nobody_reported_end_with_their_count(fleet: Fleet) -> None:
    world = fleet.world
    fleet.send(honest_reports(world))
    fleet.close_window()
    later = T0 + 5 * WINDOW_S
    fleet.send(honest_reports(world, window=later), later + WINDOW_S + 1)
    fleet.tick(fleet.clock.now_s + RESEND_S)
    assert [one.window_start_s for one in fleet.store.written] == [T0, later]
    told = [(one.window_start_s, one.reason, one.hosts) for one in fleet.store.suppressed]
    assert told == [(T0 + number * WINDOW_S, "n_min", 0) for number in range(1, 5)]


def test_restarted_leader_ends_what_passed_meanwhile(fleet: Fleet) -> None:
    world = fleet.world
    fleet.send(honest_reports(world))
    fleet.close_window()
    fleet.clock.now_s = T0 + 4 * WINDOW_S
    fleet.restart_leader()
    now_s = T0 + 4 * WINDOW_S
    fleet.tick(now_s)
    fleet.send(honest_reports(world, window=T0 + 3 * WINDOW_S), now_s + 1)
    fleet.tick(now_s + RESEND_S)
    assert [one.window_start_s for one in fleet.store.suppressed] == [T0 + 60, T0 + 120]
    assert [one.window_start_s for one in fleet.store.written] == [T0, T0 + 3 * WINDOW_S]


def test_restarted_leader_knows_when_it_accepted_a_task(fleet: Fleet) -> None:
    fleet.runner.feed(TaskSeen(fleet.world.task_bytes, T0 + 7))
    assert fleet.state.accepted_s() == {fleet.world.task_id: T0}


def test_windows_of_a_chain_close_in_their_order(fleet: Fleet) -> None:
    """A window that waits for its hosts holds those after it: releases leave in window order."""
    world = fleet.world
    fleet.send(honest_reports(world, world.hosts[:5]))
    after = T0 + WINDOW_S
    fleet.send(honest_reports(world, window=after), after + WINDOW_S + 1)
    fleet.tick(after + WINDOW_S + 2)
    assert fleet.store.written == []
    fleet.send(honest_reports(world, world.hosts[5:]), after + WINDOW_S + 3)
    fleet.tick(after + WINDOW_S + 3 + RESEND_S)
    assert [one.window_start_s for one in fleet.store.written] == [T0, after]


# What readers see


def suppressed(start: int, **changes: object) -> SuppressedWindow:
    made = SuppressedWindow("every-kind", 0, start, 60, 1, "n_min", 3, 8, start + 150.0, "demo")
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two released windows, a suppressed one between them, and one of the day before."""
    task = make_task()
    vector = true_steps(task, 100, {})
    with Store(tmp_path / "leader" / "s.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.suppress(suppressed(DAY_S - 60, reason="roster_bound"))
        store.write(window(task, vector, 100, start=DAY_S))
        store.suppress(suppressed(DAY_S + 60))
        store.suppress(suppressed(DAY_S + 60, hosts=4))  # again, after a crash
        store.write(window(task, vector, 100, start=DAY_S + 120))
    return tmp_path / "releases"


def test_windows_that_end_leave_the_files_of_others_alone(tmp_path: Path) -> None:
    """A file that is replaced while somebody reads it is no file to that reader."""
    with Store(tmp_path / "leader" / "s.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.suppress(suppressed(DAY_S))
        store.suppress(suppressed(DAY_S, version=None))
        before = inodes(tmp_path / "releases")
        store.suppress(suppressed(DAY_S, hosts=4))
        store.suppress(suppressed(DAY_S + 60))
    assert len(before) == 2
    assert before.items() <= inodes(tmp_path / "releases").items()
    lost = next(iter(before))
    lost.unlink()
    with Store(tmp_path / "leader" / "s.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.repair()
    assert lost.exists()
    assert len(read_windows(tmp_path / "releases")) == 3


def inodes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in folder.rglob("*.parquet")}


def test_reader_sees_how_every_window_ended(folder: Path) -> None:
    ends = read_windows(folder)
    assert list(ends.outcome) == ["suppressed", "released", "suppressed", "released"]
    assert list(ends.reason.fillna("")) == ["roster_bound", "", "n_min", ""]
    assert list(ends.n_hosts) == [3, 100, 3, 100]
    assert query("SELECT count(*) AS n FROM windows", folder).n[0] == 4
    assert windows_without_an_end(folder).empty


def test_reader_finds_a_window_without_an_end(folder: Path) -> None:
    (lost,) = (folder / "suppressed").rglob("date=1970-01-02/*.parquet")
    lost.unlink()
    missing = windows_without_an_end(folder)
    assert list(missing.window_start) == [pd.Timestamp(DAY_S + 60, unit="s")]


def test_store_writes_again_what_a_crash_left_out(folder: Path) -> None:
    (lost,) = (folder / "suppressed").rglob("date=1970-01-02/*.parquet")
    lost.unlink()
    with Store(folder.parent / "leader" / "s.duckdb", folder, CATALOGUE) as store:
        store.repair()
    assert windows_without_an_end(folder).empty


def test_folder_without_suppressed_windows_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / COARSE).touch()  # a new store
    assert read_windows(tmp_path).empty
    assert windows_without_an_end(tmp_path).empty
