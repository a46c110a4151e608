"""A reader learns no count of hosts or of GPUs from releases better than the grid tells it.

Two windows of one vector, n and n + 1 hosts: whatever a reader gets of them must be the same, each
column of each table and each gauge. A column that comes later is compared without being named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from aggregator.protocol.released import Capacity, ReleasedWindow, SuppressedWindow
from aggregator.releases.compaction import Compaction
from aggregator.releases.packs import DAY_S
from aggregator.releases.release_files import utc
from aggregator.releases.store import Store
from analytics import connect
from analytics.analyst_views import OUTCOMES_VIEW, PERIOD_VIEWS
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, noise, true_steps
from tests.protocol_kit import Fleet, build_world, honest_reports, open_epochs, true_sum
from tests.web_kit import client
from wire.batch import SignedRelease, vector_hash
from wire.catalogue import LEFT_OUT
from wire.task import CHECK_WORDS, SectionKind

DAY = 2_900 * 7 * DAY_S
N = 12_000
TASK = make_task(1440, domain="fleet", start=DAY)
STEPS = true_steps(
    TASK,
    N,
    {
        ("kernel_mix", "gpu_time/gemm"): 0.4 * N * 8 * 60_000,
        ("kernel_mix", "unmeasured"): 0.3 * N * 8 * 60_000,
        ("kernel_mix_by_model", "H100/gpu_time/gemm"): 0.3 * N * 8 * 60_000,
        ("incidents", "disk_io"): 64 * 300,
        ("incidents", LEFT_OUT): 64 * 90,
    },
) + noise(TASK, N, np.random.default_rng(5))

Tables = dict[str, pd.DataFrame]


def released(start: int, n: int, models: dict[int, int], *, late: int = 0) -> ReleasedWindow:
    """A window of n hosts of 8 GPUs, all of H100 but those of `models`, by one vector for all.

    Hosts above or below N measured nothing of means and indicators: one that did is in their sums,
    and so in the number of hosts that measured, under the noise of both.
    """
    vector = STEPS.copy()
    vector[:2] = n
    for spec, place in zip(TASK.sections, TASK.slices().values(), strict=True):
        section = CATALOGUE.section(spec.name)
        of_hosts = spec.kind in (SectionKind.MEAN, SectionKind.INDICATORS)
        if of_hosts and "unmeasured" in section.cells:
            vector[place.start + section.index("unmeasured")] += (n - N) * spec.cap_steps
    others = [((model, 8),) for model, hosts in models.items() for _ in range(hosts)]
    capacity = Capacity.of([((2, 8),)] * (n - len(others)) + others)
    reasons = {"late": late} if late else {}
    return ReleasedWindow(
        bytes(32), TASK, 0, start, n, vector, reasons, start + 61.0, start + 62.5, capacity
    )


def seen(root: Path, windows: list[ReleasedWindow | SuppressedWindow], *, packed: bool) -> Tables:
    """Every table that a reader finds in the folder, by the names of its columns."""
    folder = root / "releases"
    with Store(root / "store.duckdb", folder, CATALOGUE) as store:
        for window in windows:
            if isinstance(window, ReleasedWindow):
                store.write(window)
            else:
                store.suppress(window)
    if packed:
        Compaction(folder).run(utc(DAY + DAY_S).date())
    files = sorted(folder.rglob("*.parquet"))
    assert files
    tables = {
        str(file.relative_to(folder)): pq.ParquetFile(file).read().to_pandas() for file in files
    }
    with connect(folder) as fleet:
        for view in ("releases", "latest", "windows", "causes", OUTCOMES_VIEW, *PERIOD_VIEWS):
            tables[f"view {view}"] = fleet.sql(f"SELECT * FROM {view} ORDER BY ALL")
    with client(folder) as web:
        for path in ("/metrics", "/pipeline"):
            answer = web.get(path)
            assert answer.status_code == 200, path
            tables[path] = pd.DataFrame({"line": answer.text.splitlines()})
    return tables


def different(one: Tables, other: Tables) -> Iterator[str]:
    assert one.keys() == other.keys()
    for name, table in one.items():
        assert list(table) == list(other[name])
        for column in table:
            if not table[column].equals(other[name][column]):
                yield f"{name}: {column}"


@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.release)])
def test_one_host_more_changes_nothing_that_a_reader_gets(tmp_path: Path, packed: bool) -> None:
    few, many = (
        seen(tmp_path / str(n), [released(DAY, n, {}), released(DAY + 60, n, {})], packed=packed)
        for n in (N - 1, N)
    )
    assert list(different(few, many)) == []


def test_host_of_a_rare_model_is_not_seen(tmp_path: Path) -> None:
    tables = [
        seen(tmp_path / str(up), [released(DAY, N - 1 + up, {5: up, 1: 3_000})], packed=False)
        for up in (0, 1)
    ]
    assert list(different(*tables)) == []


def test_host_that_lost_a_gpu_is_not_seen(tmp_path: Path) -> None:
    tables = []
    for up in (0, 1):
        window = released(DAY, N - 1 + up, {})
        kinds = [((2, 8),)] * (N - 1) + [((2, 7),)] * up
        window = replace(window, capacity=Capacity.of(kinds))
        tables.append(seen(tmp_path / str(up), [window], packed=False))
    assert list(different(*tables)) == []


def test_suppressed_rows_and_refusals_tell_no_single_host(tmp_path: Path) -> None:
    tables = []
    for more in (0, 1):
        kept_back = SuppressedWindow(
            TASK.series, 0, DAY + 60, 60, 1, "n_min", 7_512 + more, TASK.n_min, DAY + 150.0
        )
        window = released(DAY, N, {}, late=more)
        tables.append(seen(tmp_path / str(more), [window, kept_back], packed=True))
    assert list(different(*tables)) == []


def test_hash_of_a_release_tells_no_count_to_who_has_its_numbers(tmp_path: Path) -> None:
    """Log and transcripts have the hash, files the numbers: only how many hosts is to be tried."""
    world = build_world(12)
    fleet = Fleet(world, tmp_path)
    if hasattr(fleet.leader.chains, "salts"):
        fleet.leader.chains.salts = fleet.port.status().takes_salt
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    (entry,) = (entry for _, entry in fleet.helper_state.chain(world.task.series, 0))
    vector = true_sum(world, world.hosts).astype(np.uint32)
    found = []
    for n in range(1, 30):
        vector[:CHECK_WORDS] = n
        if vector_hash(vector) == SignedRelease.decode(entry).release.vector_hash:
            found.append(n)
    assert found == []
