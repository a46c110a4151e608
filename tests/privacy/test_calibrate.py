"""Noise scales: the design's figures, exact integers, and every bound refused by name."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy import calibrate
from privacy.errors import ParameterError

MU_2 = 351_549_815


@pytest.mark.parametrize(
    ("epsilon", "mu_1e9"), [(1, 181_974_807), (2, 351_549_815), (4, 672_131_690)]
)
def test_mu_matches_the_design(epsilon: int, mu_1e9: int) -> None:
    assert calibrate.gdp_mu_1e9(epsilon * 10**6, 1000) == mu_1e9


def test_mu_is_rounded_down() -> None:
    import mpmath

    with mpmath.workdps(50):
        for mu, holds in ((MU_2, True), (MU_2 + 1, False)):
            delta = calibrate.gaussian_delta(mpmath.mpf(2), mpmath.mpf(mu) / 10**9)
            assert (delta <= mpmath.mpf("1e-9")) is holds


@pytest.mark.parametrize(
    ("window_s", "windows"),
    [(60, 10_081), (3600, 169), (86_400, 8), (604_800, 2), (4_838_400, 2), (5, 120_961)],
)
def test_windows_touched_counts_what_any_week_can_meet(window_s: int, windows: int) -> None:
    assert calibrate.windows_touched(window_s, 10**9) == windows


def test_windows_touched_is_at_most_the_windows_of_the_task() -> None:
    assert calibrate.windows_touched(5, 24) == 24
    with pytest.raises(ParameterError):
        calibrate.windows_touched(60, 0)


def test_worked_default_to_four_digits() -> None:
    delta = 1000
    total = calibrate.sigma_local_1024(delta**2, 10_081, 100_000, MU_2, 1)
    local = calibrate.sigma_local_1024(delta**2, 10_081, 100_000, MU_2, 8750)
    assert total / 1024 / delta == pytest.approx(903.16, abs=5e-3)
    assert local / 1024 / delta == pytest.approx(9.6552, abs=5e-5)


@given(
    st.integers(1, 2**40),
    st.integers(1, 10_081),
    st.integers(1, 10**6),
    st.integers(10**6, 10**10),
    st.integers(1, 10**5),
)
def test_sigma_is_the_least_multiple_that_suffices(
    delta_sq: int, windows: int, weight: int, mu: int, h: int
) -> None:
    needed = Fraction(delta_sq * windows * 10**24 * 1024**2, weight * mu**2 * h)
    if needed > calibrate.MAX_SIGMA_1024**2:  # beyond what a sampler can draw
        with pytest.raises(ParameterError, match="sigma"):
            calibrate.sigma_local_1024(delta_sq, windows, weight, mu, h)
        return
    sigma = calibrate.sigma_local_1024(delta_sq, windows, weight, mu, h)
    assert sigma**2 >= needed > (sigma - 1) ** 2


@pytest.mark.parametrize(
    ("bounds", "delta_sq"),
    [
        ((8, 8, 1), 64),  # a histogram of G r samples: Delta = G r, not sqrt G
        ((64, 128, 1), 2 * 64**2),  # two indicators of 64 steps
        ((40, 80, 10), 32),
        ((4, 10, 1), 16 + 16 + 4),
        ((100, 300, 100), 3),  # three clipped means
    ],
)
def test_sensitivity_of_each_kind(bounds: tuple[int, int, int], delta_sq: int) -> None:
    assert calibrate.sensitivity_sq_steps(*bounds) == delta_sq


@pytest.mark.parametrize("bounds", [(5, 4, 1), (0, 4, 1), (5, 10, 3), (6, 10, 3), (4, 8, 0)])
def test_sensitivity_refuses_uneven_bounds(bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ParameterError):
        calibrate.sensitivity_sq_steps(*bounds)


def test_honest_hosts_of_the_default() -> None:
    assert calibrate.honest_hosts(12_500, 10_000, 1_250) == 8_750
    assert calibrate.honest_hosts(12_500, 10_000, 10_000 // 2) == 5_000


@pytest.mark.parametrize(
    ("cohort", "bound"),
    [
        ((12_500, 10_000, 1_249), "corrupted hosts t"),
        ((12_500, 2_499, 1_250), "honest hosts h"),
        ((12_500, 10_000, 5_001), "honest hosts h"),
        ((12_500, 12_501, 1_250), "n_min"),
        ((12_500, 0, 1_250), "n_min"),
    ],
)
def test_cohort_out_of_bounds_is_refused(cohort: tuple[int, int, int], bound: str) -> None:
    with pytest.raises(ParameterError, match=bound) as caught:
        calibrate.honest_hosts(*cohort)
    assert caught.value.bound.startswith(bound)
    assert caught.value.expected
    assert caught.value.got


def test_modulus_is_checked_exactly() -> None:
    calibrate.check_modulus(12_500, 64, 632_763)
    # N C + 12 sigma sqrt N = 2^31 exactly is one too many.
    hosts, sigma_1024 = 10_000, 1024
    tail = 12 * 100
    assert (2**31 - tail) % hosts != 0
    steps = (2**31 - tail) // hosts
    calibrate.check_modulus(hosts, steps, sigma_1024)
    with pytest.raises(ParameterError, match="modulus"):
        calibrate.check_modulus(hosts, steps + 1, sigma_1024)
    with pytest.raises(ParameterError, match="modulus"):
        calibrate.check_modulus(1, 2**31 - 12, 1024)
    calibrate.check_modulus(1, 2**31 - 13, 1024)


def test_too_little_noise_and_too_much_weight_are_refused() -> None:
    calibrate.check_catalogue_sigma(2048)
    with pytest.raises(ParameterError, match="2 steps"):
        calibrate.check_catalogue_sigma(2047)
    calibrate.check_weights([10**6 - 1, 1])
    with pytest.raises(ParameterError, match="sum of weights"):
        calibrate.check_weights([10**6, 1])
    for weight in (0, 10**6 + 1):
        with pytest.raises(ParameterError, match="section weight"):
            calibrate.sigma_local_1024(1, 1, weight, MU_2, 1)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1000), (10**9, 1000), (10**6, 0), (1, 10**10)])
def test_mu_refuses_budgets_that_make_no_sense(epsilon: int, delta: int) -> None:
    with pytest.raises(ParameterError):
        calibrate.gdp_mu_1e9(epsilon, delta)
