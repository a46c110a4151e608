"""Application attribution: the production classifier on simulated jobs, and what noise leaves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulator.applications import Application, load_applications
from simulator.outcome.attribution import (
    attribute,
    attribute_released,
    job_tables,
    released_overlap,
    share_error,
)


@cache
def recorded() -> tuple[Application, ...]:
    """The applications whose tables were recorded on a GPU."""
    return tuple(one for one in load_applications() if one.is_recording)


def test_attribution_of_single_hosts_names_the_recorded_programs() -> None:
    found = attribute(recorded(), recorded(), gpus=1)
    assert found.right > 0.9
    assert found.right + found.wrong + found.unanswered == pytest.approx(1.0)


def test_attribution_falls_where_ranks_exchange_and_stages_differ() -> None:
    alone = attribute(recorded(), recorded(), gpus=8)
    staged = attribute(recorded(), recorded(), gpus=4_096)
    assert staged.right < alone.right
    # What is not recognised is called unknown rather than something else.
    assert staged.wrong < 0.1


def test_attribution_calls_what_nobody_taught_unknown() -> None:
    found = attribute(recorded()[:5], recorded()[5:], gpus=1)
    assert found.right > 0.7
    assert found.unanswered == 0.0


def test_attribution_of_a_program_under_another_name_is_wrong() -> None:
    """Train one program as another class: every answer must count as wrong."""
    first, second = recorded()[0], recorded()[-1]
    mislabelled = replace(
        first, workload=replace(first.workload, application=second.workload.application)
    )
    found = attribute([mislabelled, recorded()[1]], [first], gpus=1)
    assert found.right == 0.0
    assert found.wrong == pytest.approx(1.0)


def test_job_of_many_hosts_has_stages() -> None:
    tables = job_tables(recorded()[0], 4_096)
    assert sum(share for share, _ in tables) == pytest.approx(1.0)
    assert len({table.kernels for _, table in tables}) == 3
    assert len(job_tables(recorded()[0], 8)) == 1


def test_share_error_is_the_planners() -> None:
    """The shipped plan's application mix: 0.228 % of full scale in a day."""
    assert 100 * share_error(2.0, 12_500, 0.10, 86_400) == pytest.approx(0.2276, rel=1e-3)
    assert share_error(1.0, 12_500, 0.10, 86_400) > share_error(2.0, 12_500, 0.10, 86_400)


def test_released_attribution_needs_a_large_cohort() -> None:
    large = attribute_released(recorded(), recorded(), 1, epsilon=2.0, hosts=12_500)
    small = attribute_released(recorded(), recorded(), 1, epsilon=2.0, hosts=500)
    assert large.released > 0.9 * large.on_hosts
    assert small.released < large.released
    assert small.shown < large.shown


def test_released_overlap_of_pure_noise_is_nothing() -> None:
    truth = np.array([0.001, 0.001])
    assert released_overlap(truth, truth, 0.0, np.random.default_rng(0)) == pytest.approx(1.0)
    drawn = [released_overlap(truth, truth, 1.0, np.random.default_rng(i)) for i in range(200)]
    assert np.mean(drawn) < 0.1
