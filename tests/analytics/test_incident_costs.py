"""Causes as GPU hours and money: the hosts' error, the price list's numbers, nothing invented."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analytics.costs import ALL, COST_COLUMNS, FleetGpus, PriceListError, costs, load_prices

PRICES = """
format = 1
currency = "EUR"
gpus_per_host = 8
otherwise = 2.0
[gpu_hour]
H100 = 3.0
A100 = 1.0
[hours_lost.incidents]
disk_io = 0.5
otherwise = 2.0
"""
GPUS = FleetGpus(4.0, {"H100": 300.0, "A100": 100.0})


@pytest.fixture
def price_file(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


def table(*, corrected: bool = False, bias_bound: float = 0.0) -> pd.DataFrame:
    """Two causes of one week, each with an error of 10 hosts."""
    hosts = np.array([100.0, 50.0])
    return pd.DataFrame(
        {
            "window_start": pd.Timestamp("2026-01-01"), "window_s": 604_800, "series": "week",
            "cohort": 0, "section": "incidents", "cause": ["disk_io", "cpu_contention"],
            "component": ["storage", "CPU"], "corrected": corrected, "hosts": hosts,
            "standard_error": 10.0, "low": hosts - 19.6, "high": hosts + 19.6,
            "bias_bound": bias_bound, "q_value": [0.001, 0.002], "n_hosts": 12_000,
            "trend": "rising", "change": 1.0, "change_low": -1.0, "change_high": 3.0,
        }
    )  # fmt: skip


def test_cost_is_hosts_times_gpus_hours_and_the_fleets_price(price_file: Path) -> None:
    rows = costs(table(), load_prices(price_file), GPUS)
    assert tuple(rows.columns) == COST_COLUMNS
    found = rows.set_index("cause")
    price = (3 * 300 + 1 * 100) / 400
    assert found["price"].to_numpy() == pytest.approx(price)
    disk = found.loc["disk_io"]
    assert disk["gpu_hours"] == pytest.approx(100 * 4 * 0.5)
    assert disk["cost"] == pytest.approx(100 * 4 * 0.5 * price)
    assert disk["cost_low"] == pytest.approx((100 - 19.6) * 4 * 0.5 * price)
    assert disk["currency"] == "EUR"
    whole = found.loc[ALL]
    assert whole["gpu_hours"] == pytest.approx(4 * (50 + 100))
    reach = 1.959964 * 4 * np.hypot(0.5 * 10, 2 * 10)
    assert whole["gpu_hours_high"] - whole["gpu_hours"] == pytest.approx(reach)
    assert np.isnan(whole["hosts"])


def test_errors_of_a_corrected_table_are_added_up_as_they_are(price_file: Path) -> None:
    rows = costs(table(corrected=True), load_prices(price_file), GPUS).set_index("cause")
    whole = rows.loc[ALL]
    reach = whole["gpu_hours_high"] - whole["gpu_hours"]
    assert reach == pytest.approx(1.959964 * 4 * (0.5 * 10 + 2 * 10))


def test_bias_bounds_add_up_linearly(price_file: Path) -> None:
    rows = costs(table(bias_bound=6.0), load_prices(price_file), GPUS).set_index("cause")
    price = rows["price"].iloc[0]
    assert rows["cost_bias_bound"]["disk_io"] == pytest.approx(6 * 4 * 0.5 * price)
    assert rows["cost_bias_bound"][ALL] == pytest.approx(6 * 4 * (0.5 + 2) * price)
    reach = rows["gpu_hours_high"][ALL] - rows["gpu_hours"][ALL]
    assert reach == pytest.approx(1.959964 * 4 * np.sqrt(5**2 + 20**2 + 2**2 * 6))


def test_what_releases_do_not_tell_is_the_price_lists(price_file: Path) -> None:
    rows = costs(table(), load_prices(price_file), FleetGpus(None, {})).set_index("cause")
    assert rows["gpus_per_host"].iloc[0] == 8
    assert rows["price"].iloc[0] == 2.0


def test_shipped_price_list_can_be_read() -> None:
    prices = load_prices()
    assert prices.currency == "USD"
    assert prices.hours_lost.of("incidents", "disk_io") == 1.0
    assert prices.hours_lost.of("hardware_faults", "nic") == 8.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("surprise = 1", "surprise"),
        ("[gpu_hour]\nH999 = 1.0", "gpu_hour: expected names of the catalogue"),
        ("[hours_lost.incidents]\ndragons = 1.0", "hours_lost.incidents: expected names"),
        ("[gpu_hour]\nH100 = -1.0", "expected a number from 0"),
        ('[gpu_hour]\nH100 = "dear"', "expected a number from 0"),
    ],
)
def test_price_list_with_an_error_is_refused(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "prices.toml"
    head = 'format = 1\ncurrency = "USD"\ngpus_per_host = 8\notherwise = 2.0\n'
    path.write_text(head + line + "\n")
    with pytest.raises(PriceListError, match=said):
        load_prices(path)
    with pytest.raises(PriceListError, match="No such file"):
        load_prices(tmp_path / "none.toml")
