"""The Leader's store: idempotent, final, repaired after a crash; Parquet appears whole."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import aggregator.releases.store as store_module
from aggregator import read_releases
from aggregator.protocol.released import CoarseCounts
from aggregator.releases.release_files import SCHEMA
from aggregator.releases.store import Store, StoreConflict
from aggregator.state.state_file import StorageUnavailable
from aggregator.statistics.statistics import estimate
from tests.aggregator.releases.release_kit import CATALOGUE, capacity, make_task, true_steps, window

N = 12_000
TASK = make_task()
VECTOR = true_steps(TASK, N, {("kernel_mix", "gpu_time/gemm"): 30_000_000.0})
COUNTS = CoarseCounts.of(TASK, N, capacity(N))


def opened(root: Path) -> Store:
    return Store(root / "leader" / "store.duckdb", root / "releases", CATALOGUE)


def files(root: Path) -> dict[Path, int]:
    """Released cells on disk; tables of causes lie beside them in a folder of their own."""
    found = (root / "releases").glob("series=*/**/*")
    return {path: path.stat().st_ino for path in found if path.is_file()}


def test_store_writes_every_cell_with_its_release(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(window(TASK, VECTOR, N, start=86_400))
    rows = read_releases(tmp_path / "releases")
    want = estimate(TASK, CATALOGUE, VECTOR, COUNTS)
    assert len(rows) == len(want)
    gemm = rows[(rows.section == "kernel_mix") & (rows.cell == "gpu_time/gemm")].iloc[0]
    cell = next(c for c in want if c.cell == "gpu_time/gemm")
    assert (gemm.value, gemm.standard_error, gemm.share) == (
        cell.value,
        cell.standard_error,
        cell.share,
    )
    assert (gemm.series, gemm.cohort, gemm.n_hosts, gemm.window_s) == ("every-kind", 0, N, 60)
    assert (gemm.epsilon, gemm.delta, gemm.domain) == (2.0, 1e-9, "demo")
    assert gemm.window_start.isoformat() == "1970-01-02T00:00:00"
    assert gemm.released_at.isoformat() == "1970-01-02T00:01:02.500000"
    assert gemm.rejections == '{"late": 200}'


@pytest.mark.parametrize("domain", ["fleet", "operator"])
def test_store_says_whom_a_release_is_for(tmp_path: Path, domain: str) -> None:
    task = make_task(domain=domain)
    with Store(tmp_path / "leader.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.write(window(task, true_steps(task, N, {}), N, 86_400))
    assert set(read_releases(tmp_path / "releases")["domain"]) == {domain}


def test_store_partitions_parquet_by_series_and_date(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(window(TASK, VECTOR, N, start=86_400, cohort=3))
    (path,) = files(tmp_path)
    expected = "series=every-kind/date=1970-01-02/19700102T000000Z-c3.parquet"
    assert path.relative_to(tmp_path / "releases").as_posix() == expected
    assert pq.read_schema(path).equals(SCHEMA)
    assert path.stat().st_mode & 0o777 == 0o644


def test_store_lets_other_users_read_releases_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with opened(tmp_path) as store:
            store.write(window(TASK, VECTOR, N))
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "releases").rglob("*")]
    assert sorted(set(modes)) == [0o644, 0o755]
    assert (tmp_path / "leader" / "store.duckdb").stat().st_mode & 0o077 == 0


def test_store_writes_a_release_once(tmp_path: Path) -> None:
    release = window(TASK, VECTOR, N)
    with opened(tmp_path) as store:
        store.write(release)
        before = files(tmp_path)
        store.write(release)
    with opened(tmp_path) as store:
        store.write(replace(release, released_s=999.0))
    assert files(tmp_path) == before


def test_store_refuses_another_vector_for_a_released_window(tmp_path: Path) -> None:
    other = VECTOR.copy()
    other[5] += 1
    with opened(tmp_path) as store:
        store.write(window(TASK, VECTOR, N))
        with pytest.raises(StoreConflict, match="another vector"):
            store.write(window(TASK, other, N))
    assert len(read_releases(tmp_path / "releases")) == len(
        estimate(TASK, CATALOGUE, VECTOR, COUNTS)
    )


def test_store_keeps_windows_and_cohorts_apart(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for start, cohort in ((0, 0), (60, 0), (0, 1)):
            store.write(window(TASK, VECTOR, N, start, cohort))
    rows = read_releases(tmp_path / "releases")
    assert rows.groupby(["window_start", "cohort"]).ngroups == 3


def test_store_repairs_parquet_after_a_crash_between_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    store = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "write_whole", stop)
        with pytest.raises(KeyboardInterrupt):
            store.write(window(TASK, VECTOR, N))
    store.close()
    assert not files(tmp_path)
    with opened(tmp_path) as store:
        assert store.repair() == 1
    assert len(files(tmp_path)) == 1
    rows = read_releases(tmp_path / "releases")
    assert len(rows) == len(estimate(TASK, CATALOGUE, VECTOR, COUNTS))


def test_store_leaves_nothing_of_a_failed_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "release_rows", fail)
            with pytest.raises(MemoryError):
                store.write(window(TASK, VECTOR, N))
        assert store.repair() == 0
        store.write(window(TASK, VECTOR, N))
    assert len(files(tmp_path)) == 1


def test_store_clears_half_written_parquet(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(window(TASK, VECTOR, N))
    (path,) = files(tmp_path)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(b"PAR1 half")
    assert len(read_releases(tmp_path / "releases")) > 0
    with opened(tmp_path) as store:
        store.repair()
    assert not partial.exists()


def test_store_file_opens_in_one_process_only(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(window(TASK, VECTOR, N))
        second = f"import duckdb; duckdb.connect({str(tmp_path / 'leader' / 'store.duckdb')!r})"
        done = subprocess.run(
            [sys.executable, "-c", second], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "lock" in done.stderr.lower()
        assert len(read_releases(tmp_path / "releases")) > 0


def test_store_refuses_to_lie_among_what_readers_see(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not lie"):
        Store(tmp_path / "releases" / "store.duckdb", tmp_path / "releases", CATALOGUE)


def test_store_reports_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "leader" / "store.duckdb"
    path.parent.mkdir()
    path.write_bytes(b"not a database" * 1000)
    with opened(tmp_path) as store, pytest.raises(StorageUnavailable, match=r"store\.duckdb"):
        store.repair()
