"""Intervals of indicators hold what happened on hosts, and what hosts left out is bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.protocol.released import CoarseCounts
from aggregator.statistics.ratios import coverage
from aggregator.statistics.statistics import Cell, estimate
from edge_agent.windows.encode import encode_rows
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, noise
from wire.catalogue import NO_CLASSES
from wire.task import Task

pytestmark = pytest.mark.release

HOSTS = 12_000
SECTION = CATALOGUE.section("incidents")
NAMED = len(CATALOGUE.classes("incident"))
TASK = make_task()
PLACE = TASK.slices()[SECTION.name]


def crowded(rng: np.random.Generator, share: float) -> NDArray[np.int64]:
    """Raw rows of incidents: each host has up to six, as many as in a month of many faults."""
    rows = np.zeros((HOSTS, TASK.d - 2), dtype=np.int64)
    count = rng.choice(7, HOSTS, p=[0.1, 0.25, 0.3, 0.2, 0.1, 0.05 - share, share])
    order = rng.random((HOSTS, NAMED)).argsort(axis=1).argsort(axis=1)
    rows[:, PLACE.start - 2 : PLACE.start - 2 + NAMED] = order < count[:, None]
    return rows


def with_m(m: int) -> Task:
    """The same task where a host may report so many."""
    changed = [
        replace(spec, m=m, l1_bound=m * spec.coordinate_cap) if spec.name == SECTION.name else spec
        for spec in TASK.sections
    ]
    return replace(TASK, sections=tuple(changed))


def released(task: Task, rows: NDArray[np.int64], rng: np.random.Generator) -> list[Cell]:
    """The section's cells, of fresh choices and noise."""
    vector = encode_rows(task, rows, rng.bytes).sum(axis=0) + noise(task, HOSTS, rng)
    cells = estimate(task, CATALOGUE, vector, CoarseCounts.of(task, HOSTS))
    return [cell for cell in cells if cell.section == SECTION.name]


def test_intervals_cover_where_many_hosts_have_more_than_two_causes() -> None:
    rng = np.random.default_rng(20261123)
    rows = crowded(rng, share=0.003)
    truth = dict(zip(SECTION.cells, rows[:, PLACE.start - 2 :].sum(axis=0), strict=False))
    held = trials = 0
    for _ in range(12):
        for cell in released(TASK, rows, rng):
            if cell.cell not in NO_CLASSES:
                held += cell.low <= truth[cell.cell] <= cell.high
                trials += 1
    assert trials == 12 * NAMED
    assert coverage(held, trials).consistent_with(0.95)


def test_bias_bound_holds_what_cells_lack_and_says_so_in_hosts() -> None:
    """Two words a host where many have six causes: far too low, and the release knows by how much.

    Every crowded host lacks the same chance of each cause, so that of one which all of them have
    is the bound itself.
    """
    rng = np.random.default_rng(4)
    rows = crowded(rng, share=0.003)
    own = slice(PLACE.start - 2, PLACE.start - 2 + NAMED)
    everywhere = rows[:, own].sum(axis=1) > 2
    rows[everywhere, PLACE.start - 2] = 1
    truth = rows[:, own].sum(axis=0)
    task = with_m(2)
    cells = [released(task, rows, rng) for _ in range(10)]
    mean = np.mean([[cell.value for cell in row] for row in cells], axis=0)
    lack = truth - mean[:NAMED]
    bound = np.array([row[0].bias_bound for row in cells])
    left_out = mean[-1]
    assert lack[0] == pytest.approx(left_out, abs=200)
    assert lack[0] > 1_000
    assert (lack < bound.mean()).all()
    assert (bound > left_out - 60).all()
    assert all(cell.bias_bound == row[0].bias_bound for row in cells for cell in row)


def test_choice_among_many_widens_the_interval_by_what_was_left_out() -> None:
    rng = np.random.default_rng(5)
    rows, task = crowded(rng, share=0.003), with_m(2)
    cells = released(task, rows, rng)
    spec = next(spec for spec in task.sections if spec.name == SECTION.name)
    hosts = CoarseCounts.of(task, HOSTS).hosts
    most = hosts.value + hosts.bound
    noise_alone = (spec.sigma_1024 / 1024 / spec.cap_steps) ** 2 * most
    assert cells[0].standard_error ** 2 == pytest.approx(noise_alone + cells[-1].value)


def test_bias_bound_is_zero_for_what_is_not_chosen_and_small_where_nothing_is_left_out() -> None:
    rng = np.random.default_rng(6)
    rows = np.zeros((HOSTS, TASK.d - 2), dtype=np.int64)
    vector = encode_rows(TASK, rows, rng.bytes).sum(axis=0) + noise(TASK, HOSTS, rng)
    cells = estimate(TASK, CATALOGUE, vector, CoarseCounts.of(TASK, HOSTS))
    assert {cell.bias_bound for cell in cells if cell.kind != "indicators"} == {0.0}
    quiet = next(cell for cell in cells if cell.section == SECTION.name)
    assert quiet.bias_bound <= 5 * quiet.standard_error
