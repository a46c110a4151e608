"""Roll-ups of a simulated fleet hold its truth as often as they say: what the benchmark counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator.statistics.ratios import coverage
from analytics import RollupPeriod
from bench.analytics import FLEETS, figures_of, play


@pytest.mark.release
def test_days_of_a_simulated_fleet_hold_its_truth_in_95_of_100() -> None:
    hours = next(fleet for fleet in FLEETS if fleet.name == "hours")
    small = replace(hours, hosts=100, hours=48, periods=(RollupPeriod.DAY,), step_s=600)
    rows = play(small, seed=3)["rows"]
    for of in ("value", "share", "change"):
        counted = [row for row in rows if row["of"] == of]
        intervals = sum(row["intervals"] for row in counted)
        held = coverage(sum(row["held"] for row in counted), intervals)
        assert intervals > 50
        assert held.consistent_with(0.95), (of, held)
    names = {figure.name for figure in figures_of(rows)}
    assert "rollup_interval_coverage_percent" in names
