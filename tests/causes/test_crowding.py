"""How low numbers are that come from at most two causes a host."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.correction import lost_if_independent
from aggregator.ratios import Floats
from privacy.quantise import choose_indicators, uniform_words

HOSTS = 20_000


def reported(has: np.ndarray) -> Floats:
    """Shares that come in when each host draws two of its causes, as agents do."""
    words = uniform_words(has.shape[0], has.shape[1], np.random.default_rng(3).bytes)
    return np.asarray(choose_indicators(has.astype(np.int64), 2, words).mean(axis=0), np.float64)


def test_loss_is_that_of_independent_causes() -> None:
    rng = np.random.default_rng(1)
    rates = np.array([0.6, 0.4, 0.3, 0.2, 0.1, 0.05])
    has = rng.random((HOSTS, len(rates))) < rates
    told = reported(has)
    true_loss = 1 - told.sum() / has.mean(axis=0).sum()
    assert true_loss > 0.1
    assert lost_if_independent(told, 2) == pytest.approx(true_loss, abs=0.01)


def test_loss_of_causes_that_come_together_is_larger_than_told() -> None:
    rng = np.random.default_rng(2)
    has = np.repeat(rng.random((HOSTS, 1)) < 0.1, 6, axis=1)
    told = reported(has)
    assert 1 - told.sum() / has.mean(axis=0).sum() == pytest.approx(2 / 3, abs=0.01)
    assert lost_if_independent(told, 2) < 0.1


def test_nothing_is_lost_where_a_host_cannot_have_a_third_cause() -> None:
    assert lost_if_independent(np.array([0.9, 0.9]), 2) == pytest.approx(0)
    assert lost_if_independent(np.array([-0.1, 0.0]), 2) == 0
    assert lost_if_independent(np.array([]), 2) == 0
