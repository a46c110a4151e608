"""The new metric of the page for contributors: measured, encoded, sealed, released."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.enrolment.tasks import TaskPlan, build_task
from aggregator.protocol.released import CoarseCounts
from aggregator.statistics.statistics import estimate
from collectors.interface import Source, SourceRegistry
from edge_agent.windows.encode import encode_rows
from edge_agent.windows.window_accumulator import HostClock, WindowAccumulator
from privacy.noise_table import SeededSampler
from tests.docs.test_adding_things import blocks
from tests.protocol_kit import T0, WINDOW_S, Fleet, build_world, open_epochs, seal_report
from wire.catalogue import Catalogue
from wire.task import Task

HOSTS = 12
BOOT_NS = 77 * 10**9

_SECTION, _SOURCE = (text for kind, _, text in blocks("Add a metric") if kind != "diff")
_PAGE: dict[str, Any] = {"__name__": __name__}
exec(_SOURCE, _PAGE)
OpenFilesSource: Callable[..., Source] = _PAGE["OpenFilesSource"]


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    shipped = Catalogue.load()
    if any(section.name == "open_files" for section in shipped.sections):
        return shipped  # somebody followed the page
    path = tmp_path / "catalogue.toml"
    path.write_text(f'format = 2\nextends = "default"\n\n{_SECTION}', encoding="utf-8")
    return Catalogue.load(path)


def toy_task(catalogue: Catalogue) -> Task:
    plan = TaskPlan(
        series="minute",
        window_s=WINDOW_S,
        first_window=T0,
        last_window=T0 + 100 * WINDOW_S,
        weights={"open_files": 500_000},
        gpus_per_host=8,
        n_max=20,
        n_min=8,
        t=2,
        leader_pk=bytes(32),
        helper_pk=bytes(32),
        expiry=T0 + 10**7,
    )
    # The cohort's smallest sizes serve a test; the weight and bounds are the task's own.
    return build_task(catalogue, plan)


def measure(catalogue: Catalogue, task: Task, source: Source) -> np.ndarray:
    """One host's window, from the source to the raw row."""
    windows = WindowAccumulator(
        catalogue, task, [], clock=HostClock(T0 * 10**9 - BOOT_NS), first_window=T0
    )
    source.start()
    for second in range(3):
        for record in source.drain(BOOT_NS + second * 10**9):
            windows.add(record)
    return windows.close(T0)


def fleet_of_sources(folder: Path) -> Sequence[Source]:
    """Hosts with 1,000, 1,100, ... open files."""
    made = []
    for number in range(HOSTS):
        path = folder / f"file-nr-{number}"
        path.write_text(f"{1_000 + 100 * number}\t0\t9223372036854775807\n", encoding="utf-8")
        made.append(OpenFilesSource(path))
    return made


def test_toy_metric_of_this_host_reaches_the_raw_row(catalogue: Catalogue) -> None:
    registry = SourceRegistry()
    registry.register("open_files", OpenFilesSource)
    registry.register("elsewhere", lambda: OpenFilesSource(Path("/no/such/file")))
    (source,), (absent,) = registry.start_all()
    assert (absent.source, absent.reason) == ("elsewhere", "/no/such/file does not exist")
    task = toy_task(catalogue)
    row = measure(catalogue, task, source)
    assert row.shape == (2,)
    assert row[1] == 0, "it was measured"
    assert 0 < row[0] <= 1_000_000


def test_toy_metric_is_released_with_its_error(catalogue: Catalogue, tmp_path: Path) -> None:
    task = toy_task(catalogue)
    world = build_world(HOSTS, sections=task.sections, catalogue_hash=catalogue.hash, n_max=20)
    sources = fleet_of_sources(tmp_path)
    rows = np.stack([measure(catalogue, world.task, source) for source in sources])
    draw = np.random.default_rng(2).bytes
    steps = encode_rows(world.task, rows, draw)
    noise = SeededSampler(5).sample(HOSTS, world.task.sigma_vector_1024())
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(
        seal_report(world, host, vector)
        for host, vector in zip(world.hosts, steps + noise, strict=True)
    )
    fleet.close_window()
    (release,) = fleet.store.written
    assert release.n == HOSTS
    assert np.array_equal(release.vector - noise.sum(axis=0), steps.sum(axis=0))
    counts = CoarseCounts.of(world.task, HOSTS)
    exact, told = estimate(world.task, catalogue, release.vector - noise.sum(axis=0), counts)
    assert (told.cell, told.value) == ("measured", HOSTS)
    assert exact.section == "open_files"
    assert exact.unit == "files"
    # The mean of 1,000 .. 2,100 files, but for rounding to 64 steps of 10,000 files.
    rounding = 4 * 10_000 / 64 / 2 / HOSTS**0.5
    assert exact.value / HOSTS == pytest.approx(1_550, abs=rounding)
    assert exact.whole == HOSTS * 10_000
    assert exact.share is None, "so few hosts are noise themselves"
    noisy, _ = estimate(world.task, catalogue, release.vector, counts)
    assert noisy.standard_error > 0
    assert noisy.value != exact.value
