"""The planner's m: what hosts would leave out, beside the noise."""

from __future__ import annotations

import numpy as np
import pytest

from pointillist.plan_file import default_plan, shipped_counts
from pointillist.plan_report import catalogue_shapes, plan_report
from pointillist.plan_text import plan_text
from privacy.indicator_bias import BIAS_ERRORS, crowding, left_out_hosts
from privacy.plan import indicator_sigma_hosts
from privacy.quantise import choose_indicators, uniform_words
from wire.catalogue import Catalogue

CATALOGUE = Catalogue.load()


def test_left_out_hosts_are_what_a_fleet_says_it_left_out() -> None:
    counts = np.array([100, 200, 300, 2_000, 4_000, 1_000], dtype=np.int64)
    rows = (np.arange(6) < np.repeat(np.arange(6), counts)[:, None]).astype(np.int64)
    words = uniform_words(len(rows), 7, np.random.default_rng(8).bytes)
    said = choose_indicators(rows, 2, words)[:, -1].sum()
    expected = left_out_hosts(counts, 2)
    assert expected == pytest.approx(2_000 / 2 + 4_000 * 2 / 3 + 1_000 * 3 / 4)
    assert said == pytest.approx(expected, abs=5 * expected**0.5)


def test_crowding_names_the_worst_scenario_and_the_least_m() -> None:
    quiet, full = np.array([0, 900, 100]), np.array([0, 0, 500, 400, 100])
    found = crowding("s", 2, 1_000, {"quiet": quiet, "full": full}, lambda _: 50.0)
    assert (found.scenario, found.above_m) == ("full", 0.5)
    assert found.bias_hosts == pytest.approx(400 / 2 + 100 * 2 / 3)
    assert found.bias_bound_hosts == pytest.approx(found.bias_hosts + 1.645 * 50)
    # With three: 100 hosts of which each leaves a third out, over 0.4 x 50 hosts; with four none.
    assert found.least_m == 4
    assert crowding("s", 2, 1_000, {"full": full}, lambda _: 100.0).least_m == 3


def test_shipped_m_keeps_what_is_left_out_below_the_noise_in_every_scenario() -> None:
    report = plan_report(default_plan(), catalogue_shapes(default_plan(), CATALOGUE))
    counts = shipped_counts()
    windows = {(section.name, section.window_s) for one in report.tasks for section in one.sections}
    told = windows & set(counts)
    assert sorted(row.section for row in report.crowding) == sorted(name for name, _ in told)
    for row in report.crowding:
        assert row.m == CATALOGUE.section(row.section).m >= row.least_m
        (section,) = (
            section
            for task in report.tasks
            for section in task.sections
            if section.name == row.section
        )
        assert section.sigma_hosts is not None
        assert row.bias_hosts <= BIAS_ERRORS * section.sigma_hosts
        assert {"steady", "faulty_month"} <= set(counts[row.section, section.window_s])


def test_error_by_m_is_the_planners_own() -> None:
    plan = default_plan()
    report = plan_report(plan, catalogue_shapes(plan, CATALOGUE))
    for task, figures in zip(plan.tasks, report.tasks, strict=True):
        for section, found in zip(task.sections, figures.sections, strict=True):
            if found.sigma_hosts is not None:
                error = indicator_sigma_hosts(plan, section.weight_millionths, found.m, task.T)
                assert error == pytest.approx(found.sigma_hosts, rel=1e-4)


def test_plan_shows_m_and_what_hosts_leave_out() -> None:
    plan = default_plan()
    text = plan_text(plan_report(plan, catalogue_shapes(plan, CATALOGUE)), 100)
    assert "least m" in text
    assert "hosts above m" in text
    lines = [line for line in text.splitlines() if line.startswith("  applications_seen")]
    assert len(lines) == 2
    assert max(map(len, text.splitlines())) <= 100
