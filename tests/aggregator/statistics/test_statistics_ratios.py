"""Fieller intervals, coverage bounds and weighted means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from aggregator.statistics.ratios import (
    CellRatios,
    coverage,
    expected_by_chance,
    fieller,
    normal_quantile,
)


def scalar(*numbers: float, sampling: float = 0.0) -> tuple[float, float, float]:
    """Fieller's value, low and high of one ratio."""
    x, d, var_x, var_d, cov = (np.array([number]) for number in numbers)
    found = fieller(x, d, var_x, var_d, cov, sampling)
    return float(found.value[0]), float(found.low[0]), float(found.high[0])


def test_fieller_with_an_exact_denominator_is_the_plain_interval() -> None:
    value, low, high = scalar(50.0, 100.0, 4.0, 0.0, 0.0)
    assert value == 0.5
    assert low == pytest.approx(0.5 - normal_quantile() * 0.02)
    assert high == pytest.approx(0.5 + normal_quantile() * 0.02)


def test_fieller_ends_are_where_the_difference_is_just_pure_noise() -> None:
    x, d, vx, vd, cov = 30.0, 60.0, 9.0, 25.0, 6.0
    _, low, high = scalar(x, d, vx, vd, cov)
    for end in (low, high):
        spread = math.sqrt(vx - 2 * end * cov + end**2 * vd)
        assert abs(x - end * d) == pytest.approx(normal_quantile() * spread)
    assert high - 0.5 > 0.5 - low


def test_fieller_is_suppressed_where_the_denominator_is_noise() -> None:
    assert all(math.isnan(x) for x in scalar(5.0, 9.0, 1.0, 25.0, 0.0))
    assert all(math.isnan(x) for x in scalar(5.0, -100.0, 1.0, 1.0, 0.0))
    assert not math.isnan(scalar(5.0, 10.0, 1.0, 25.0, 0.0)[0])


def test_fieller_with_sampling_is_wilsons_interval_without_noise() -> None:
    n = 200
    _, low, high = scalar(0.0, n, 0.0, 0.0, 0.0, sampling=n)
    z2 = normal_quantile() ** 2
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(z2 / (n + z2))


@pytest.mark.parametrize("x", [-30.0, -1.0, 1.0, 30.0])
@pytest.mark.parametrize("sampling", [0.0, 50.0])
def test_fieller_holds_the_intervals_of_all_denominators_within_the_bound(
    x: float, sampling: float
) -> None:
    def of(d: float, bound: float) -> CellRatios:
        a, b, c, e, f = np.array([[x], [d], [4.0], [9.0], [-2.0]])
        return fieller(a, b, c, e, f, sampling, bound)

    found = of(100.0, 7.0)
    within = [of(d, 0.0) for d in np.linspace(93, 107, 29)]
    assert found.low[0] == pytest.approx(min(one.low[0] for one in within))
    assert found.high[0] == pytest.approx(max(one.high[0] for one in within))


def test_fieller_of_a_negative_numerator_keeps_its_value_inside() -> None:
    value, low, high = scalar(-30.0, 100.0, 4.0, 4.0, 0.0, sampling=50.0)
    assert low < value < high < 0


def test_fieller_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(11)
    trials, sd_x, sd_d = 4000, 3.0, 8.0
    x, d = 20 + sd_x * rng.normal(size=trials), 40 + sd_d * rng.normal(size=trials)
    found = fieller(x, d, np.array(sd_x**2), np.array(sd_d**2), np.array(0.0))
    known = ~np.isnan(found.value)
    hits = int(((found.low <= 0.5) & (found.high >= 0.5))[known].sum())
    assert coverage(hits, int(known.sum())).consistent_with(0.95)


def test_coverage_bounds_are_exact() -> None:
    bounds = coverage(0, 10, 0.95)
    assert (bounds.rate, bounds.low) == (0.0, 0.0)
    assert bounds.high == pytest.approx(1 - 0.025**0.1)
    assert not coverage(800, 1000).consistent_with(0.95)
    with pytest.raises(ValueError, match="hits"):
        coverage(11, 10)


def test_expected_by_chance_is_the_normal_tail() -> None:
    assert expected_by_chance(1000) == pytest.approx(22.75, rel=1e-3)


@pytest.mark.parametrize(("hits", "trials"), [(0, 7), (7, 7), (3, 7), (355, 383)])
def test_coverage_bounds_are_those_of_scipys_exact_test(hits: int, trials: int) -> None:
    theirs = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
    ours = coverage(hits, trials, 0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
