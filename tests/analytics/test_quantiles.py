"""Quantiles of histograms: the right ones, and intervals that hold them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aggregator.releases.releases import QueryRefused
from analytics import QUANTILE_MEANINGS, connect
from analytics.quantiles_sql import quantiles
from tests.aggregator.releases.release_kit import CATALOGUE, true_steps, window
from tests.analytics.rollup_kit import write_releases
from tests.analytics.test_rollups import HOSTS, START, WALL, WEEK, WIDE

HISTOGRAMS = ("kernel_duration", "gpu_utilisation")
TASK = replace(WIDE, sections=tuple(s for s in WIDE.sections if s.name in HISTOGRAMS))
ERROR = 0.002
"""Of a bin, where all of them together are 1."""
LARGE = 10_000
"""Times a host's wall time: beside it noise is nothing."""


def spread(amounts: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Sums of a fleet of which each host adds such parts of LARGE walls."""
    return {cell: LARGE * HOSTS * WALL * amount for cell, amount in amounts.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two weeks: kernels of 1 to 2 µs and of 1 to 2 ms, half of the time each, then longer ones."""
    releases = tmp_path_factory.mktemp("histograms") / "releases"
    weeks = (
        {
            ("kernel_duration", "2^10..2^11 ns"): 0.5,
            ("kernel_duration", "2^20..2^21 ns"): 0.5,
            ("gpu_utilisation", "10..15 percent"): 0.2,
            ("gpu_utilisation", "95.. percent"): 0.8,
        },
        {("kernel_duration", "2^25..2^26 ns"): 1.0, ("gpu_utilisation", "0..5 percent"): 1.0},
    )
    write_releases(
        releases,
        (
            window(TASK, true_steps(TASK, HOSTS, spread(parts)), HOSTS, START + at * WEEK)
            for at, parts in enumerate(weeks)
        ),
    )
    return releases


def test_quantile_is_a_call(folder: Path) -> None:
    with connect(folder) as fleet:
        median = fleet.quantile(until=START + WEEK)
        assert list(median.columns) == list(QUANTILE_MEANINGS)
        assert median[["section", "unit", "quantile"]].to_numpy().tolist() == [
            ["kernel_duration", "ns", 0.5]
        ]
        several = fleet.quantile([0.25, 0.75], until=START + WEEK)
        assert several["value"].tolist() == pytest.approx([2**10.5, 2**20.5], rel=1e-3)
        assert several["low"].tolist() == [2**10, 2**20]
        assert several["high"].tolist() == [2**11, 2**21]
        weeks = fleet.quantile(0.9)
        assert weeks["value"].tolist() == pytest.approx([2**20.8, 2**25.9], rel=1e-3)
        assert fleet.quantile(0.1, "utilisation")["value"].tolist() == pytest.approx([12.5, 0.5])
        (row,) = fleet.quantile(0.9, "utilisation", until=START + WEEK).itertuples()
        assert (row.value, row.low, row.high) == (95, 95, np.inf)
        with pytest.raises(ValueError, match=r"expected fractions between 0 and 1, got 99"):
            fleet.quantile(99)
        assert fleet.quantile(0.5, "family").empty


def test_quantile_is_a_call_in_sql_too(folder: Path) -> None:
    with connect(folder) as fleet:
        sql = "FROM quantiles('weeks', 0.75) WHERE section = 'kernel_duration' ORDER BY ALL"
        rows = fleet.sql(sql)
        assert list(rows.columns) == list(QUANTILE_MEANINGS)
        assert rows["value"].tolist() == fleet.quantile(0.75)["value"].tolist()
        joined = fleet.sql(
            "SELECT q.value, c.share FROM Quantiles('days', 0.5) AS q "
            "JOIN weeks AS c USING (section) JOIN releases AS r USING (section) LIMIT 1"
        )
        assert len(joined) == 1
        with pytest.raises(QueryRefused, match="expected a fraction between 0 and 1"):
            fleet.sql("FROM quantiles('weeks', 75)")
        with pytest.raises(QueryRefused, match="fortnights does not exist"):
            fleet.sql("FROM quantiles('fortnights', 0.5)")


def noisy(parts: np.ndarray, error: float, count: int, rng: np.random.Generator) -> pd.DataFrame:
    """So many released histograms of kernel durations, each with noise of its own."""
    bins = CATALOGUE.section("kernel_duration").bins
    assert bins is not None
    cells = count * bins.count
    same = dict.fromkeys(("reason", "windows", "windows_suppressed", "coverage", "hosts", "until"))
    return pd.DataFrame(
        {
            "series": "minute", "cohort": pd.array([None] * cells, "Int64"), "period_s": 60,
            "period_start": np.repeat(np.arange(count), bins.count), "section": "kernel_duration",
            "bin": np.tile(np.arange(bins.count), count),
            "bin_low": np.tile(np.array(bins.edges, float), count),
            "bin_high": np.tile(np.array([*bins.edges[1:], np.nan], float), count),
            "bin_unit": "ns", "value": np.tile(parts, count) + rng.normal(0, error, cells),
            "standard_error": error, "suppressed": False, **same,
        }
    )  # fmt: skip


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.99])
def test_interval_holds_the_true_quantile(fraction: float) -> None:
    rng = np.random.default_rng(7)
    parts = rng.dirichlet(np.full(32, 0.7))
    rows = quantiles(noisy(parts, ERROR, 400, rng), [fraction])
    far = 6 * ERROR * 32**0.5
    least, place, most = np.searchsorted(np.cumsum(parts), fraction + far * np.arange(-1, 2))
    held = (rows["low"] <= 2.0**place) & (rows["high"] > 2.0**place)
    assert len(rows) == 400
    assert held.mean() >= 0.95
    assert rows["value"].between(rows["low"], rows["high"]).all()
    assert (rows["low"] >= 2.0**least).all()  # it is not held by saying everything
    assert (rows["high"] <= 2.0 ** (most + 1)).all() or most >= 31


def test_quantile_of_noise_is_suppressed() -> None:
    rows = quantiles(noisy(np.zeros(32), 0.01, 50, np.random.default_rng(8)), [0.5])
    assert rows[["value", "low", "high"]].isna().all(axis=1).sum() >= 45
