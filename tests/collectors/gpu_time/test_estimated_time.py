"""Intervals of estimated GPU time, and their sums."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from collectors.records.gpu_time import EstimatedTime, summed

S = 1_000_000_000


def known(variance: float, windows: int = 32, span_s: int = 4) -> EstimatedTime:
    return EstimatedTime(100.0, variance, windows, span_s * S)


EXACT = EstimatedTime(100.0, 0.0, 0, 4 * S)
NONE_KNOWN = EstimatedTime(100.0, None, 0, 4 * S)


@given(st.integers(2, 32))
def test_interval_is_student_s_of_the_windows_it_was_learnt_from(windows: int) -> None:
    error_ns = known(9.0, windows).error_ns
    assert error_ns == pytest.approx(3 * t.ppf(0.975, windows - 1), rel=1e-3)


def test_interval_of_what_was_all_recorded_is_nothing() -> None:
    assert EXACT.error_ns == 0.0


def test_no_interval_is_stated_where_none_is_known() -> None:
    assert NONE_KNOWN.error_ns is None
    assert summed([NONE_KNOWN, NONE_KNOWN]).error_ns is None


def test_sum_of_nothing_is_nothing() -> None:
    assert summed([]) == EstimatedTime(0.0, 0.0, 0, 0)


def test_variances_of_windows_add_up() -> None:
    assert summed([known(9.0, 8), known(16.0, 12)]) == EstimatedTime(200.0, 25.0, 12, 8 * S)


def test_unknown_variance_is_taken_to_be_that_of_the_other_windows() -> None:
    found = summed([NONE_KNOWN, known(9.0), known(9.0)])
    assert (found.variance, found.windows) == (27.0, 32)
    assert summed([known(9.0, span_s=1), NONE_KNOWN]).variance is None


def test_what_was_all_recorded_says_nothing_of_a_window_before() -> None:
    assert summed([NONE_KNOWN, *[EXACT] * 100]).variance is None


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=9))
def test_sum_of_sums_is_the_sum(variances: list[float]) -> None:
    parts = [known(variance) for variance in variances]
    nested = summed([summed(parts[:3]), summed(parts[3:])])
    assert nested.value_ns == pytest.approx(summed(parts).value_ns)
    assert sqrt(nested.variance or 0) == pytest.approx(sqrt(summed(parts).variance or 0))
