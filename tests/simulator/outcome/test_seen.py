"""Until when has every application been seen: coins, the bound of m, the simultaneous interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pointillist.plan_file import default_plan
from privacy.quantise import left_out_chance
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet.fleet_model import FleetModel
from simulator.outcome.attribution import DayRuns, live_days
from simulator.outcome.seen import Design, Sampling, seen_curve, simultaneous_quantile, told_hosts
from simulator.scenario import Applications, FleetLoad
from tests.engine_kit import CATALOGUE, scenario

PARTIES = (b"L" * 32, b"H" * 32)


def day(applications: int = 20, hosts_each: int = 300, hosts: int = 5_000) -> DayRuns:
    """Each application on so many hosts, for an hour on each."""
    rng = np.random.default_rng(5)
    host = np.concatenate(
        [rng.choice(hosts, hosts_each, replace=False) for _ in range(applications)]
    )
    application = np.repeat(np.arange(applications), hosts_each)
    windows = np.full(len(host), 60)
    gpu_s = np.full((24, applications), 100.0)
    return DayRuns(host, application, windows, gpu_s, np.ones(hosts, dtype=np.bool_), 0.1)


def test_application_is_seen_when_its_hosts_pass_the_simultaneous_bound() -> None:
    sigma = 300 / (simultaneous_quantile(20) + 6) / np.sqrt(5_000)
    curve = seen_curve([day()], Design(4, sigma, None))
    assert curve.hours_to_99 == 24.0
    assert curve.within_a_day == 1.0
    assert curve.share[22] == 0.0  # nothing before the day has ended
    # The same hosts under five times the noise: no day of them is enough.
    assert seen_curve([day()], Design(4, 5 * sigma, None)).hours_to_99 is None


def test_days_add_up_until_all_are_seen() -> None:
    sigma = 300 / 2 / np.sqrt(5_000)  # one day's count is two standard errors
    assert seen_curve([day()], Design(4, sigma, None)).hours_to_99 is None
    found = seen_curve([day()] * 20, Design(4, sigma, None)).hours_to_99
    assert found is not None
    assert found > 48


def test_share_shows_an_application_within_the_day() -> None:
    design = Design(0, None, 100.0 / 10 / np.sqrt(5_000))
    assert seen_curve([day()], design).hours_to_99 == 1.0


def test_what_nobody_ran_is_hardly_ever_seen() -> None:
    """Twenty empty applications: at most 2.5 % of first days show any of them."""
    empty = replace(
        day(), host=np.zeros(0, np.int64), application=np.zeros(0, np.int64),
        windows=np.zeros(0, np.int64), gpu_s=np.zeros((24, 20)),
    )  # fmt: skip
    draws = 400
    curve = seen_curve([empty], Design(4, 1.0, None), draws=draws)
    assert curve.within_a_day == 0.0
    shown = [seen_curve([empty], Design(4, 1.0, None), draws=1, seed=s) for s in range(draws)]
    false = sum(one.share[-1] > 0 for one in shown)
    assert false <= 25  # of 400 at 2.5 %: 10 expected, 25 is beyond one in 10,000


def test_host_tells_of_at_most_m_applications() -> None:
    runs = day(applications=20, hosts_each=4_000)
    rng = np.random.default_rng(1)
    every, nobody = told_hosts(runs, 20, 1.0, Sampling.WINDOWS, rng)
    some, left_out = told_hosts(runs, 4, 1.0, Sampling.WINDOWS, rng)
    assert (every.sum(), nobody) == (20 * 4_000, 0)
    assert some.sum() + left_out == 4 * 5_000
    chance = left_out_chance(np.bincount(runs.host), 4)
    assert left_out == pytest.approx(chance.sum(), abs=5 * (chance * (1 - chance)).sum() ** 0.5)
    # At random, so that no application is always the one left out.
    assert some.min() > 640


def test_sampling_of_windows_loses_less_than_sampling_of_hosts() -> None:
    """An hour is 60 coins: at a rate of 5 % one of them falls right 95 times in 100."""
    rng = np.random.default_rng(2)
    windows = told_hosts(day(), 20, 0.05, Sampling.WINDOWS, rng)[0].sum() / 6_000
    hosts = told_hosts(day(), 20, 0.05, Sampling.HOSTS, rng)[0].sum() / 6_000
    assert windows == pytest.approx(1 - 0.95**60, abs=0.02)
    assert hosts == pytest.approx(0.05, abs=0.02)


def test_seen_curve_refuses_a_rate_of_nothing() -> None:
    with pytest.raises(ValueError, match="0 < rate"):
        seen_curve([day()], Design(4, 1.0, None), rate=0.0)


def test_simultaneous_quantile_of_one_cell_is_the_plain_one() -> None:
    assert simultaneous_quantile(1) == pytest.approx(1.95996, abs=1e-5)
    assert simultaneous_quantile(84) == pytest.approx(3.434, abs=1e-3)


def test_design_of_the_shipped_plan_has_the_planners_noise() -> None:
    made = scenario(12_500, 1, duration_s=86_400, operators=(1.0,) * 10)
    model = FleetModel(made, CATALOGUE)
    tasks = fleet_tasks(
        default_plan(),
        CATALOGUE,
        model.inventory,
        (made.start_s, made.end_s),
        (b"L" * 32, b"H" * 32),
    )
    design = Design.of(tasks)
    assert design.m == 18
    assert design.indicator_sigma is not None
    assert design.indicator_sigma * np.sqrt(12_500) == pytest.approx(64.35, abs=0.1)
    assert design.share_sigma is not None
    # 1.477 % of 100,000 GPU-hours.
    expected = 0.01477 * 100_000 * 3600
    assert design.share_sigma * np.sqrt(12_500) == pytest.approx(expected, rel=0.01)


def test_lived_day_counts_every_host_that_ran_an_application() -> None:
    made = scenario(
        60, 1, duration_s=86_400, load=FleetLoad(busy_share=0.3),
        applications=Applications(numbered=5), step_s=600,
    )  # fmt: skip
    (runs,) = live_days(FleetModel(made, CATALOGUE), CATALOGUE, 1)
    whole = FleetModel(made, CATALOGUE).at(made.start_s, 86_400)
    ran = sum(int(word).bit_count() for word in whole.seen.ravel())
    assert len(runs.host) == ran
    assert runs.windows.max() <= 1_440
    assert runs.hosts_of.sum() <= ran
    assert 0.1 < runs.busy_share < 0.5
