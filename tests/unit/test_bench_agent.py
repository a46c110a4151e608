"""What the agent's benchmark makes of its measurements."""

from __future__ import annotations

import random

from bench.agent_pairs import median_of


def test_median_interval_holds_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(7)
    held = 0
    for _ in range(2_000):
        found = median_of([generator.gauss(3.0, 2.0) for _ in range(20)])
        assert found.low <= found.value <= found.high
        held += found.low <= 3.0 <= found.high
    assert 0.95 <= held / 2_000 <= 0.975


def test_median_of_few_values_spans_all_of_them() -> None:
    assert (median_of([4.0, 1.0]).low, median_of([4.0, 1.0]).high) == (1.0, 4.0)
