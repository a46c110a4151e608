"""How much is recorded, so that it costs no more than the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu_time.gpu_time_source import GpuTimeSection
from collectors.gpu_time.listener import WindowPlan
from collectors.gpu_time.window_estimates import FIRST, LEAST_SHARE, RECORD_NS, WINDOW_MS, Budget
from tests.segment_kit import snapshot
from transport.settings.config import ConfigError, build

S = 1_000_000_000
DEFAULT = GpuTimeSection().budget


def followed(share: float, per_second: float) -> WindowPlan:
    state = snapshot(records=round(per_second * 100), on_ns=100 * S)
    return Budget(share).follow(state)


def cost_ms(plan: WindowPlan, per_second: float) -> float:
    """What a period of a plan costs, by the model: windows, and records until there are enough."""
    records = per_second * plan.on_ms / 1e3
    ended_early = plan.most and records > plan.most
    window_ms = WINDOW_MS if ended_early or plan.on_ms < plan.period_ms else 0
    return window_ms + min(records, plan.most or records) * RECORD_NS / 1e6


@given(st.floats(LEAST_SHARE, 0.5), st.floats(1, 1e7))
def test_plan_costs_no_more_than_the_budget(share: float, per_second: float) -> None:
    plan = followed(share, per_second)
    assert cost_ms(plan, per_second) <= share * plan.period_ms * 1.001


@given(st.floats(LEAST_SHARE, 0.5), st.floats(1, 1e7), st.floats(1, 1e9))
def test_a_burst_that_nothing_foretold_costs_no_more(
    share: float, per_second: float, burst: float
) -> None:
    plan = followed(share, per_second)
    assert cost_ms(plan, burst) <= share * plan.period_ms * 1.001


def test_a_process_with_few_launches_is_recorded_all_the_time() -> None:
    plan = followed(DEFAULT, 100)
    assert plan.on_ms == plan.period_ms


def test_a_busy_process_is_recorded_in_windows() -> None:
    plan = followed(DEFAULT, 300_000)
    assert 10 <= plan.on_ms < plan.period_ms // 10


def test_nothing_is_known_at_first() -> None:
    budget = Budget(DEFAULT)
    assert budget.plan() == budget.follow(snapshot()) == FIRST
    assert FIRST.most * RECORD_NS < 10_000_000


def test_a_busy_time_is_remembered_for_a_while() -> None:
    budget = Budget(DEFAULT)
    budget.follow(snapshot(records=1_000_000, on_ns=S))
    assert budget.busiest == pytest.approx(1e6)
    budget.follow(snapshot(records=1_000_000, on_ns=2 * S))
    assert budget.busiest == pytest.approx(9e5)
    for second in range(3, 90):
        plan = budget.follow(snapshot(records=1_000_000, on_ns=second * S))
    assert plan.on_ms == plan.period_ms


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 64))
def test_counts_of_a_stranger_make_a_plan(records: int, on_ns: int, later: int) -> None:
    budget = Budget(DEFAULT)
    budget.follow(snapshot(records=records, on_ns=on_ns))
    budget.follow(snapshot(records=later, on_ns=on_ns // 2 + later))


def test_the_least_budget_of_the_configuration_can_be_kept() -> None:
    with pytest.raises(ConfigError, match="budget_percent"):
        build(GpuTimeSection, {"budget_percent": 100 * LEAST_SHARE * 0.99}, "gpu_time")
    assert build(GpuTimeSection, {"budget_percent": 0.04}, "gpu_time").budget >= LEAST_SHARE
