"""Fieller intervals, coverage bounds, weighted means and correction by a confusion matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aggregator.ratios import (
    correct_by_confusion,
    coverage,
    expected_by_chance,
    fieller,
    normal_quantile,
    weighted_mean,
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


def test_weighted_mean_adds_variances() -> None:
    values, errors = np.array([[1.0], [4.0]]), np.array([[3.0], [4.0]])
    mean, error = weighted_mean(values, errors, np.array([1.0, 1.0]))
    assert (mean[0], error[0]) == (2.5, 2.5)
    mean, _ = weighted_mean(values, errors, np.array([3.0, 1.0]))
    assert mean[0] == 1.75
    with pytest.raises(ValueError, match="weights"):
        weighted_mean(values, errors, np.zeros(2))


def detector() -> tuple[np.ndarray, np.ndarray]:
    return np.array([[0.8, 0.1], [0.05, 0.7]]), np.array([0.01, 0.002])


def test_confusion_correction_recovers_the_true_counts() -> None:
    detection, alarm = detector()
    truth, hosts = np.array([120.0, 40.0]), 10_000
    reported = truth @ detection + (hosts - truth.sum()) * alarm
    found, error = correct_by_confusion(reported, np.zeros(2), detection, alarm, hosts)
    assert found == pytest.approx(truth)
    assert (error > 0).all()


def test_confusion_correction_error_covers_noise_and_the_detectors_chance() -> None:
    detection, alarm = detector()
    rng = np.random.default_rng(5)
    truth, hosts, noise, trials = np.array([300, 100]), 10_000, 20.0, 2000
    found, errors = np.empty((trials, 2)), np.empty((trials, 2))
    for trial in range(trials):
        reported = rng.binomial(truth[:, None], detection).sum(axis=0)
        reported = reported + rng.binomial(hosts - truth.sum(), alarm)
        noisy = reported + noise * rng.normal(size=2)
        found[trial], errors[trial] = correct_by_confusion(
            noisy, np.full(2, noise), detection, alarm, hosts
        )
    assert found.mean(axis=0) == pytest.approx(truth, abs=4 * found.std(axis=0).max() / 45)
    assert found.std(axis=0) == pytest.approx(errors.mean(axis=0), rel=0.08)


def test_confusion_correction_refuses_a_useless_detector() -> None:
    blind = np.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="too badly"):
        correct_by_confusion(np.ones(2), np.ones(2), blind, np.full(2, 0.5), 100)
    with pytest.raises(ValueError, match="probabilities"):
        correct_by_confusion(np.ones(2), np.ones(2), np.eye(2) * 1.2, np.zeros(2), 100)
    with pytest.raises(ValueError, match="detection matrix"):
        correct_by_confusion(np.ones(2), np.ones(2), np.eye(3), np.zeros(2), 100)
