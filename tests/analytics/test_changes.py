"""Changes: intervals that hold the true change, a false-discovery rate that is kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analytics.changes import CHANGE_COLUMNS, changes

Z = 1.959964
CELLS = 40
ERROR = 0.01


def frame(shares: np.ndarray, rng: np.random.Generator, kind: str = "mix") -> pd.DataFrame:
    """Cells of one period, released with an error of ERROR."""
    found = shares + rng.normal(scale=ERROR, size=len(shares))
    known = pd.DataFrame(
        {
            "series": "minute", "cohort": 0, "section": "kernel_mix",
            "cell": [f"gpu_time/{at}" for at in range(len(shares))], "model": "",
            "measure": "gpu_time", "name": [str(at) for at in range(len(shares))], "kind": kind,
            "unit": "GPU-s", "period_start": pd.Timestamp("2026-01-01"), "period_s": 3600,
            "coverage": 1.0, "hosts": 100.0, "host_windows": 6_000, "bias_bound": 0.0,
            "told": found > 3 * ERROR,
        }
    )  # fmt: skip
    low, high = found - Z * ERROR, found + Z * ERROR
    if kind == "mean":
        return known.assign(
            value=found, low=low, high=high, share=np.nan, share_low=np.nan, share_high=np.nan
        )
    return known.assign(
        value=found,
        low=low,
        high=high,
        share=found,
        share_low=low,
        share_high=high,
    )


def test_interval_of_a_change_holds_it_in_95_of_100() -> None:
    rng = np.random.default_rng(1)
    before, after = rng.uniform(0, 0.2, size=(2, 4_000))
    rows = changes(frame(before, rng), frame(after, rng)).set_index("cell").sort_index()
    true = pd.Series(after - before, index=[f"gpu_time/{at}" for at in range(4_000)]).sort_index()
    held = (rows["low"] <= true) & (true <= rows["high"])
    assert 0.94 < held.mean() < 0.96
    assert tuple(rows.reset_index()[list(CHANGE_COLUMNS)].columns) == CHANGE_COLUMNS


def test_tables_in_which_nothing_changed_tell_of_a_change_in_one_of_a_hundred_at_most() -> None:
    rng = np.random.default_rng(2)
    tables = np.repeat([f"series {at}" for at in range(200)], CELLS)
    before, after = (frame(np.full(200 * CELLS, 0.1), rng).assign(series=tables) for _ in range(2))
    rows = changes(before, after)
    assert rows.groupby("series")["told"].any().sum() <= 3  # two are expected at the rate itself


def test_large_changes_are_told_whichever_way_they_go() -> None:
    rng = np.random.default_rng(3)
    before = np.full(CELLS, 0.2)
    after = before.copy()
    after[:3] += (0.15, -0.15, 0.15)
    rows = changes(frame(before, rng), frame(after, rng))
    told = rows[rows["told"]].set_index("name")["change"]
    assert set(told.index) == {"0", "1", "2"}
    assert np.sign(told[["0", "1", "2"]]).tolist() == [1, -1, 1]
    assert rows.set_index("name")["ratio"]["0"] == pytest.approx(0.35 / 0.2, abs=0.25)


def test_interval_of_a_change_takes_over_that_shares_intervals_are_lopsided() -> None:
    rng = np.random.default_rng(6)
    before = frame(np.full(1, 0.1), rng).assign(share=0.10, share_low=0.08, share_high=0.15)
    after = frame(np.full(1, 0.3), rng).assign(share=0.30, share_low=0.26, share_high=0.32)
    row = changes(before, after).iloc[0]
    assert row["low"] == pytest.approx(0.2 - np.hypot(0.04, 0.05))
    assert row["high"] == pytest.approx(0.2 + np.hypot(0.02, 0.02))
    back = changes(after, before).iloc[0]
    assert (back["low"], back["high"]) == pytest.approx((-row["high"], -row["low"]))
    assert back["standard_error"] == pytest.approx(np.hypot(0.04, 0.05) / Z)


@pytest.mark.parametrize(("cells", "q_value"), [(1, 0.0455), (2, 0.0455 * (1 + 1 / 2))])
def test_q_value_is_two_sided_and_holds_under_any_dependence(cells: int, q_value: float) -> None:
    rng = np.random.default_rng(7)
    before = frame(np.full(cells, 0.1), rng).assign(share=0.1, share_low=0.1, share_high=0.1)
    after = before.assign(share=0.12, share_low=0.12 - Z * 0.01, share_high=0.12 + Z * 0.01)
    assert changes(before, after)["q_value"].to_numpy() == pytest.approx(q_value, abs=1e-3)


def test_means_are_compared_in_their_own_unit() -> None:
    rng = np.random.default_rng(4)
    rows = changes(frame(np.full(3, 40.0), rng, "mean"), frame(np.full(3, 60.0), rng, "mean"))
    assert (rows["unit"] == "GPU-s").all()
    assert rows["change"].to_numpy() == pytest.approx(20.0, abs=0.1)
    assert rows["told"].all()


def test_share_that_one_period_has_not_is_no_change() -> None:
    rng = np.random.default_rng(5)
    before = frame(np.full(2, 0.1), rng)
    before.loc[0, ["share", "share_low", "share_high"]] = np.nan
    rows = changes(before, frame(np.full(2, 0.5), rng)).set_index("name")
    assert rows["suppressed"].to_dict() == {"0": True, "1": False}
    assert not rows["told"]["0"]
    assert np.isnan(rows["q_value"]["0"])
