"""A Helper restored from a backup, two live Helpers, and what is kept for how long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aggregator.helper.helper_state import FencedOut, HelperState
from aggregator.protocol.interfaces import BODY_RETENTION_S, BatchKey
from aggregator.state.state_file import StateUnusable
from tests.privacy.test_helper_batch_rules import Bench
from tests.protocol_kit import T0, WINDOW_S, World, build_world, open_epochs
from wire.witness import NO_LINKS


@pytest.fixture
def world() -> World:
    world = build_world(12)
    open_epochs(world)
    return world


def ready(world: World, folder: Path, **options: object) -> Bench:
    bench = Bench(world, folder, **options)
    bench.runner.submit_epochs([h.epoch.encode() for h in world.hosts if h.epoch is not None])
    return bench


def test_helper_restored_from_a_backup_refuses_windows_closed_before(
    world: World, tmp_path: Path
) -> None:
    bench = ready(world, tmp_path)
    bench.state.close()
    backup = tmp_path / "backup.sqlite"
    shutil.copy(tmp_path / "helper.sqlite", backup)
    bench = ready(world, tmp_path)
    assert bench.ask(bench.batch(world.hosts)).share
    bench.state.close()
    shutil.copy(backup, tmp_path / "helper.sqlite")
    restored = ready(world, tmp_path)
    # The restored state knows nothing of the answer: a batch that differs in one host.
    assert restored.ask(restored.batch(world.hosts[:-1])).refusal == "closed_before_restore"
    restored.clock.now_s = T0 + 2 * WINDOW_S + 6
    assert restored.ask(restored.batch(world.hosts, window=T0 + WINDOW_S)).share


def test_helper_that_lost_its_state_refuses_windows_closed_before(
    world: World, tmp_path: Path
) -> None:
    bench = ready(world, tmp_path)
    bench.state.close()
    for name in ("helper.sqlite", "helper.sqlite-wal", "helper.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    again = ready(world, tmp_path)
    assert again.ask(again.batch(world.hosts)).refusal == "closed_before_restore"


def test_restore_that_the_operator_told_of_closes_windows(world: World, tmp_path: Path) -> None:
    ready(world, tmp_path).state.close()
    again = ready(world, tmp_path)
    again.state.restored(again.clock(), NO_LINKS)
    assert again.ask(again.batch(world.hosts)).refusal == "closed_before_restore"


def test_ordinary_restart_refuses_nothing(world: World, tmp_path: Path) -> None:
    bench = ready(world, tmp_path)
    assert bench.ask(bench.batch(world.hosts)).share
    bench.state.close()
    again = ready(world, tmp_path)
    again.clock.now_s = T0 + 2 * WINDOW_S + 6
    assert again.state.refuse_before_s == 0
    assert again.ask(again.batch(world.hosts, window=T0 + WINDOW_S)).share


@pytest.mark.parametrize("with_fence", [True, False])
def test_helper_that_moved_goes_on_and_without_its_fence_is_a_restored_one(
    world: World, tmp_path: Path, with_fence: bool
) -> None:
    bench = ready(world, tmp_path / "old")
    assert bench.ask(bench.batch(world.hosts)).share
    bench.state.close()
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    if not with_fence:
        (tmp_path / "new" / "helper.fence").unlink()
    moved = ready(world, tmp_path / "new")
    assert moved.ask(moved.batch(world.hosts[:-1])).refusal in {
        "answered_otherwise", "closed_before_restore"
    }  # fmt: skip
    moved.clock.now_s = T0 + 2 * WINDOW_S + 6
    assert (moved.state.refuse_before_s == 0) == with_fence
    assert moved.ask(moved.batch(world.hosts, window=T0 + WINDOW_S)).share


def test_older_of_two_live_helpers_is_fenced_out(world: World, tmp_path: Path) -> None:
    older = ready(world, tmp_path)
    newer = ready(world, tmp_path)
    with pytest.raises(FencedOut):
        older.ask(older.batch(world.hosts))
    assert newer.state.answer(BatchKey(world.task_id, 0, T0)) is None
    assert newer.ask(newer.batch(world.hosts[:-1])).share


def test_clone_that_shares_only_the_fence_file_is_fenced_out(world: World, tmp_path: Path) -> None:
    older = ready(world, tmp_path)
    clone = HelperState(tmp_path / "clone.sqlite", tmp_path / "helper.fence", T0)
    with pytest.raises(FencedOut):
        older.ask(older.batch(world.hosts))
    clone.close()


def test_crash_between_commit_and_sum_gives_the_same_bytes_later(
    world: World, tmp_path: Path
) -> None:
    class Crash(BaseException):
        pass

    def crash(step: str) -> None:
        if step == "between commit and sum":
            raise Crash

    plain = ready(world, tmp_path / "plain")
    batch = plain.batch(world.hosts, spoil_tag=1)
    expected = plain.ask(batch)
    broken = ready(world, tmp_path / "broken", checkpoint=crash)
    with pytest.raises(Crash):
        broken.ask(batch)
    broken.state.close()
    again = Bench(world, tmp_path / "broken")
    assert again.ask(broken.batch(world.hosts[:-1]), complete=False).refusal == "answered_otherwise"
    asked = again.ask(batch, complete=False)
    assert len(asked.need_epochs) == 11
    again.runner.submit_epochs([h.epoch.encode() for h in world.hosts if h.epoch is not None])
    assert again.ask(batch) == expected


def test_bodies_go_after_a_week_and_hashes_stay(world: World, tmp_path: Path) -> None:
    bench = ready(world, tmp_path)
    batch = bench.batch(world.hosts)
    assert bench.ask(batch).share
    key = BatchKey(world.task_id, 0, T0)
    bench.state.prune(bench.clock() + BODY_RETENTION_S - 1, 6 * 3600)
    kept = bench.state.answer(key)
    assert kept is not None
    assert kept.body is not None
    bench.state.prune(bench.clock() + BODY_RETENTION_S + 1, 6 * 3600)
    pruned = bench.state.answer(key)
    assert pruned is not None
    assert (pruned.body, pruned.used) == (None, None)
    assert pruned.batch_hash == kept.batch_hash
    assert list(bench.state.epochs()) == []


def test_damaged_state_is_refused_with_its_path(world: World, tmp_path: Path) -> None:
    ready(world, tmp_path).state.close()
    (tmp_path / "helper.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StateUnusable, match=r"helper\.sqlite"):
        Bench(world, tmp_path)
