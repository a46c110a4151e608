"""A row of equal windows is drawn as one sum, with the variance of as many windows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.engine.fast import NoiseEngine
from simulator.engine.interface import Noise
from simulator.fleet.hosts import FleetState
from simulator.scenario import Dropout
from tests.engine_kit import (
    SEEDED,
    SILENT,
    SameRows,
    SmallFleet,
    errors,
    exact_steps,
    plan,
    scenario,
)
from wire.task import CHECK_WORDS, Task

pytestmark = pytest.mark.release

WINDOWS = 60
HOSTS = 40
TIMES = 1_200


@pytest.fixture(scope="module")
def fleet() -> SmallFleet:
    made = scenario(HOSTS, WINDOWS, dropout=Dropout(share=0.0, late_share=0.0))
    return SmallFleet(made, plan(weights={"host_cpu": 300_000, "kernel_duration": 300_000}))


@pytest.fixture(scope="module")
def rows(fleet: SmallFleet) -> SameRows:
    rng = np.random.default_rng(1)
    return SameRows(fleet.rows.block(fleet.states[0], 0, HOSTS, rng))


def shifted(state: FleetState, seconds: int) -> FleetState:
    """The same hosts in another window: other streams."""
    return replace(state, start_s=state.start_s + seconds)


def rounding_of(fleet: SmallFleet, rows: SameRows, windows: int, times: int) -> NDArray[np.float64]:
    """Rounding errors float64[times, k] of so many windows in a row, in steps."""
    task, state = fleet.task, fleet.states[0]
    found = []
    with closing(NoiseEngine(fleet.model.inventory, SILENT)) as engine:
        for number in range(times):
            moved = shifted(state, 60 * number)
            one = engine.windows(task, moved.start_s, moved, rows, windows)
            assert one.released is not None
            found.append(one.released[CHECK_WORDS:] - exact_steps(task, one.truth))
    return np.array(found)


@pytest.fixture(scope="module")
def minutes(fleet: SmallFleet, rows: SameRows) -> NDArray[np.float64]:
    """Rounding errors of TIMES single windows, what both kinds of rows are compared with."""
    return rounding_of(fleet, rows, 1, TIMES)


def test_row_of_windows_counts_hosts_and_truth_of_them_all(
    fleet: SmallFleet, rows: SameRows
) -> None:
    state = fleet.states[0]
    with closing(NoiseEngine(fleet.model.inventory, SEEDED)) as engine:
        hour = engine.windows(fleet.task, state.start_s, state, rows, WINDOWS)
        minute = engine.window(fleet.task, state.start_s, state, rows)
    assert hour.windows == WINDOWS
    assert hour.n == hour.reporting == WINDOWS * HOSTS
    assert np.array_equal(hour.truth, WINDOWS * minute.truth)
    assert hour.released is not None
    assert hour.released[:CHECK_WORDS].tolist() == [WINDOWS * HOSTS] * CHECK_WORDS
    assert hour.capacity is not None
    assert minute.capacity is not None
    assert hour.capacity.gpus == WINDOWS * minute.capacity.gpus
    assert hour.capacity.squares == WINDOWS * minute.capacity.squares


def test_row_of_windows_has_the_noise_of_summed_windows(fleet: SmallFleet, rows: SameRows) -> None:
    """Sixty minutes of `masked`, summed, and an hour drawn as one, against the same prediction."""
    task = fleet.task
    summed = _summed_minutes(fleet, rows, task)
    hours = []
    with closing(NoiseEngine(fleet.model.inventory, SEEDED)) as engine:
        for number in range(40):
            moved = shifted(fleet.states[0], 3600 * number)
            hours.append(engine.windows(task, moved.start_s, moved, rows, WINDOWS))
    hour = errors(hours)
    assert 0.85 < np.mean(hour**2) < 1.16  # 1,480 cells: 4 standard errors
    assert 0.6 < np.mean(summed**2) < 1.5  # 111 cells
    assert abs(hour.mean()) < 4 / np.sqrt(hour.size)


def _summed_minutes(fleet: SmallFleet, rows: SameRows, task: Task) -> NDArray[np.float64]:
    """Errors of three hours, each the sum of sixty windows with noise and masks of their own."""
    found = []
    for seed in range(3):
        played = fleet.play("masked", replace(SEEDED, seed=seed, noise=Noise.SEEDED), rows=rows)
        total = np.sum([one.released for one in played if one.released is not None], axis=0)
        truth = np.sum([one.truth for one in played], axis=0)
        n = sum(one.n for one in played)
        sigma = task.sigma_vector_1024()[CHECK_WORDS:] / 1024 * np.sqrt(n)
        found.append((total[CHECK_WORDS:] - exact_steps(task, truth)) / sigma)
    return np.concatenate(found)


def test_row_of_windows_rounds_as_independent_windows_do(
    fleet: SmallFleet, rows: SameRows, minutes: NDArray[np.float64]
) -> None:
    """Variances, and the covariances that one uniform per host and section makes, times sixty."""
    hours = rounding_of(fleet, rows, WINDOWS, TIMES)
    assert np.abs(hours.mean(axis=0)).max() < 5 * np.sqrt(WINDOWS * HOSTS / 4 / TIMES)
    by_minute, by_hour = np.cov(minutes.T), np.cov(hours.T)
    rounded = np.flatnonzero(np.diag(by_minute) > 1)
    assert rounded.size > 5
    ratio = np.diag(by_hour)[rounded] / np.diag(by_minute)[rounded] / WINDOWS
    assert np.abs(ratio - 1).max() < 0.25
    place = np.ix_(rounded, rounded)
    apart = by_hour[place] / WINDOWS - by_minute[place]
    assert np.abs(apart).max() < 0.25 * np.diag(by_minute)[rounded].max()


def test_windows_apart_have_each_its_own_noise_and_the_rounding_of_its_own(
    fleet: SmallFleet, rows: SameRows
) -> None:
    task, state = fleet.task, fleet.states[0]
    with closing(NoiseEngine(fleet.model.inventory, SEEDED)) as engine:
        played = list(engine.apart(task, state.start_s, state, rows, 4 * WINDOWS))
        again = list(engine.apart(task, state.start_s, state, rows, 3))
    assert [one.start for one in played] == [state.start_s + 60 * at for at in range(240)]
    assert all(one.windows == 1 and one.n == one.reporting == HOSTS for one in played)
    for one, same in zip(played, again, strict=False):
        assert one.released is not None
        assert same.released is not None
        assert np.array_equal(one.released, same.released)
        assert one.released[:CHECK_WORDS].tolist() == [HOSTS] * CHECK_WORDS
    found = errors(played)
    assert 0.9 < np.mean(found**2) < 1.1  # 8,880 cells: 6 standard errors
    assert abs(found.mean()) < 4 / np.sqrt(found.size)
    neighbours = found.reshape(240, -1)
    assert abs(np.mean(neighbours[1:] * neighbours[:-1])) < 5 / np.sqrt(found.size)


def test_windows_apart_round_as_independent_windows_do(
    fleet: SmallFleet, rows: SameRows, minutes: NDArray[np.float64]
) -> None:
    """Variance of one window, and of a sum of four: no sign is that of the window before."""
    task, state = fleet.task, fleet.states[0]
    sums, ones = [], []
    with closing(NoiseEngine(fleet.model.inventory, SILENT)) as engine:
        for number in range(TIMES // 4):
            moved = shifted(state, 60 * 4 * number)
            played = list(engine.apart(task, moved.start_s, moved, rows, 4))
            each = [
                one.released[CHECK_WORDS:] - exact_steps(task, one.truth)
                for one in played
                if one.released is not None
            ]
            sums.append(np.sum(each, axis=0))
            ones.append(each[0])
    wanted = np.var(minutes, axis=0)
    rounded = np.flatnonzero(wanted > 1)
    assert np.abs(np.var(ones, axis=0)[rounded] / wanted[rounded] - 1).max() < 0.35
    assert np.abs(np.var(sums, axis=0)[rounded] / wanted[rounded] / 4 - 1).max() < 0.35
