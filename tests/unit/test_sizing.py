"""The sizing model: what a report costs becomes cores, partitions and bytes of a fleet."""

from __future__ import annotations

from math import isclose

import pytest

from pointillist.sizing import Cost, Costs, TaskLoad, fit, size_of

COSTS = Costs(Cost(10, 0.01), Cost(5, 0.01), Cost(2, 0.002), epoch_us=300)
MINUTE = TaskLoad(1000, 60)


def test_fit_finds_the_line_that_costs_lie_on() -> None:
    found = fit([(500, 15.0), (1000, 20.0), (2000, 30.0)])
    assert isclose(found.report_us, 10)
    assert isclose(found.word_us, 0.01)


def test_fit_of_one_width_is_refused() -> None:
    with pytest.raises(ValueError, match="two widths"):
        fit([(1000, 20.0), (1000, 21.0)])


def test_size_counts_reports_and_epochs_at_half_a_core_each() -> None:
    size = size_of(60_000, [MINUTE], COSTS, COSTS)
    # 1,000 reports/s x 20 us, and 16.7 epochs/s x 300 us, on cores that are half busy.
    assert isclose(size.leader_cores, 2 * (0.020 + 0.005))
    assert isclose(size.helper_cores, 2 * (0.015 + 0.005))
    assert isclose(size.broker_cores, 2 * 0.004)
    assert isclose(size.log_bytes_a_second, 1000 * (4144 + 8))
    assert isclose(size.log_bytes_kept, 1000 * (4144 + 8) * 86_400 * 14 * 3)
    assert (size.workers, size.partitions, size.brokers) == (1, 4, 3)


def test_size_adds_the_tasks_of_a_plan() -> None:
    """An hour's task of 3,000 words weighs as a minute's would of which one in sixty came."""
    minute, both = (
        size_of(60_000, tasks, COSTS, COSTS) for tasks in ([MINUTE], [MINUTE, TaskLoad(3000, 3600)])
    )
    assert isclose(both.reports_a_second - minute.reports_a_second, 60_000 / 3600)
    assert isclose(both.leader_cores - minute.leader_cores, 2 * 60_000 / 3600 * 40e-6)
    assert isclose(both.leader_bytes - minute.leader_bytes, 60_000 * 3000 * 4)


def test_size_of_a_role_beyond_a_core_takes_the_costs_of_workers() -> None:
    dearer = Costs(Cost(20, 0.01), Cost(5, 0.01), Cost(2, 0.002), epoch_us=300)
    small = size_of(60_000, [MINUTE], COSTS, dearer)
    large = size_of(6_000_000, [MINUTE], COSTS, dearer)
    assert isclose(small.leader_cores, 0.05)
    assert isclose(large.leader_cores, 7.0)
    assert (large.workers, large.partitions) == (7, 7)
    assert large.brokers == 25
