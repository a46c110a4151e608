"""What comes out of a masked round: readings plus noise exactly, and the noise promised."""

import os

import numpy as np
import pytest
from scipy.stats import chi2

from privacy.calibrate import gdp_mu_1e9, honest_hosts, sensitivity_sq_steps, sigma_local_1024
from privacy.masks import mask_into
from privacy.noise_table import SeededBytes, SeededSampler
from privacy.quantise import clip_rows, round_steps, uniform_below

HOSTS, N_MIN, CORRUPTED, WIDTH = 50, 40, 5, 6
STEPS = 64


@pytest.fixture
def sigma_1024() -> int:
    delta_sq = sensitivity_sq_steps(STEPS, STEPS, 1)
    honest = honest_hosts(HOSTS, N_MIN, CORRUPTED)
    return sigma_local_1024(delta_sq, 24, 10**6, gdp_mu_1e9(2 * 10**6, 1000), honest)


def test_released_sum_is_readings_plus_noise_exactly(sigma_1024: int) -> None:
    """Masks cancel to the bit, wrap-around and negative sums included."""
    random_bytes = SeededBytes(4, "readings")
    rows = uniform_below(100, HOSTS * WIDTH, random_bytes).reshape(HOSTS, WIDTH)
    steps = round_steps(clip_rows(rows, STEPS, STEPS), 1, np.zeros(HOSTS, dtype=np.int64))
    noise = SeededSampler(9).sample(HOSTS, np.full(WIDTH, sigma_1024))
    masks = np.zeros((HOSTS, WIDTH), dtype=np.uint32)
    for mask in masks:
        mask_into(os.urandom(32), os.urandom(12), mask)
    reports = (steps + noise).astype(np.uint32) + masks
    released = reports.sum(axis=0, dtype=np.uint32) - masks.sum(axis=0, dtype=np.uint32)
    assert (released.view(np.int32) == (steps + noise).sum(axis=0)).all()
    assert ((steps + noise).sum(axis=0) < 0).any()


def test_released_variance_is_that_of_all_hosts(sigma_1024: int) -> None:
    """sigma_local sqrt(n) for the actual n, which is above sigma_total: standard errors use it."""
    windows = 400
    noise = SeededSampler(2).sample(HOSTS * windows, np.full(WIDTH, sigma_1024))
    sums = noise.reshape(windows, HOSTS, WIDTH).sum(axis=1)
    variance = HOSTS * (sigma_1024 / 1024) ** 2
    statistic = (sums**2).sum() / variance
    low, high = (float(chi2.ppf(p, sums.size)) for p in (1e-6, 1 - 1e-6))
    assert low < statistic < high
    honest = honest_hosts(HOSTS, N_MIN, CORRUPTED)
    assert not low < (sums**2).sum() / (variance * honest / HOSTS) < high


def test_one_report_is_hidden_by_its_mask(sigma_1024: int) -> None:
    """An idle and a busy host's masked words follow one uniform distribution."""
    words = np.empty((2, 20_000), dtype=np.uint32)
    for row in words:
        mask_into(os.urandom(32), os.urandom(12), row)
    words[1] += np.uint32(STEPS)
    for row in words:
        counts = np.bincount(row >> np.uint32(28), minlength=16)
        p = chi2.sf(((counts - 1250) ** 2 / 1250).sum(), 15)
        assert p > 1e-9
    assert sigma_1024 > 2048
