"""The simulated fleet against what was published: the gates that it must pass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from aggregator.statistics.ratios import coverage
from pointillist.plan_file import default_plan
from pointillist.plan_report import catalogue_shapes
from privacy.calibrate import SIGMA_UNIT
from privacy.noise_table import SeededSampler
from privacy.plan import section_figures
from simulator.fleet.fleet_events import CAUSE_COUNTS, fault_rates, incident_rates
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.hosts import HostInventory, make_inventory
from simulator.fleet.jobs import COMMUNICATION, COMPUTE, LARGE
from simulator.scenario import Faults, FleetLoad, Jobs, load
from tests.window_kit import CATALOGUE

pytestmark = pytest.mark.release

STEADY = load("steady")
EMPTY = FleetLoad(busy_share=0)
DAY_S = 86_400
RSC_1 = Faults(per_1000_node_days=6.5)
LEMONS = Faults(per_1000_node_days=6.5, lemon_share=0.012, lemon_faults_per_day=1.6)


def inventory_of(hosts: int, faults: Faults, seed: int = 1) -> HostInventory:
    return make_inventory(STEADY.with_(hosts=hosts, faults=faults, seed=seed), CATALOGUE)


def mttf_hours(faults: Faults, hosts: int) -> float:
    """Mean time to the first fault of any host, hours."""
    return float(1 / fault_rates(faults, inventory_of(hosts, faults)).sum() / 3600)


def struck(model: FleetModel) -> dict[str, int]:
    return {name.removeprefix("fault "): count for name, count in model.counts.items()
            if name.startswith("fault ")}  # fmt: skip


@pytest.fixture(scope="module")
def faulty() -> FleetModel:
    """Ninety days of 2,048 hosts: 16,384 GPUs, nothing running."""
    scenario = STEADY.with_(hosts=2_048, faults=RSC_1, load=EMPTY, step_s=DAY_S // 4)
    model = FleetModel(scenario, CATALOGUE, keep_s=100 * DAY_S)
    model.at(scenario.start_s, 90 * DAY_S)
    return model


def test_calibration_rsc_rate_gives_mttf_of_1_8_hours_at_16384_gpus(faulty: FleetModel) -> None:
    assert mttf_hours(RSC_1, hosts=2_048) == pytest.approx(1.8, rel=0.01)
    measured = 90 * 24 / sum(struck(faulty).values())
    # About 1,200 faults: three standard errors are 9 %.
    assert measured == pytest.approx(1.8, rel=0.09)


def test_calibration_lemons_bring_1024_gpus_near_the_measured_7_9_hours() -> None:
    """Without them the same rate gives 28.8 hours."""
    assert mttf_hours(RSC_1, hosts=128) == pytest.approx(28.8, rel=0.01)
    hosts, days = 12_800, 20
    scenario = STEADY.with_(hosts=hosts, faults=LEMONS, load=EMPTY, step_s=DAY_S // 4)
    model = FleetModel(scenario, CATALOGUE, keep_s=100 * DAY_S)
    model.at(scenario.start_s, days * DAY_S)
    jobs_of_1024_gpus = hosts / 128
    measured = days * 24 * jobs_of_1024_gpus / sum(struck(model).values())
    # 154 lemons, give or take 12: their number is most of the spread.
    lemons = model.inventory.lemon.mean() / LEMONS.lemon_share
    assert measured * (0.73 * lemons + 0.27) == pytest.approx(7.9, rel=0.06)
    assert measured == pytest.approx(7.9, rel=0.2)


def test_calibration_causes_are_within_sampling_error_of_their_table(faulty: FleetModel) -> None:
    names = CATALOGUE.classes("hardware_fault")[: len(CAUSE_COUNTS)]
    counts = np.array([struck(faulty).get(name, 0) for name in names], dtype=np.float64)
    assert counts.sum() > 1_000
    shares = CAUSE_COUNTS / CAUSE_COUNTS.sum()
    often = shares * counts.sum() >= 5
    assert often.sum() >= 15
    seen = np.append(counts[often], counts[~often].sum())
    expected = np.append(shares[often], shares[~often].sum()) * counts.sum()
    seen, expected = seen[expected > 0], expected[expected > 0]
    assert stats.chisquare(seen, expected).pvalue > 0.001
    assert stats.chisquare(seen[::-1], expected).pvalue < 1e-9


def test_calibration_fail_slow_strikes_as_often_as_published() -> None:
    scenario = STEADY.with_(hosts=5_000, faults=Faults(per_1000_node_days=0), step_s=600)
    model = FleetModel(scenario, CATALOGUE)
    model.at(scenario.start_s, DAY_S)
    for kind, chance in ((COMPUTE, 0.015), (COMMUNICATION, 0.40), (LARGE, 16 / 27)):
        jobs, slow = model.counts[f"placements {kind.name}"], model.counts[f"slow {kind.name}"]
        assert jobs > 150
        assert coverage(slow, jobs, confidence=0.999).consistent_with(chance), kind.name
    assert COMPUTE.chance < 0.02
    assert (COMPUTE.mean_s, COMMUNICATION.mean_s) == (10 * 60, 24 * 60)


def test_calibration_fail_slow_takes_a_third_longer() -> None:
    scenario = STEADY.with_(
        hosts=5_000,
        faults=Faults(per_1000_node_days=0),
        load=FleetLoad(speed_spread=0, straggler_share=0),
        jobs=Jobs(largest_gpus=4_096, elastic_share=0),
    )
    state = FleetModel(scenario, CATALOGUE).at(scenario.start_s, 60)
    jobs, first, sizes = np.unique(state.job, return_index=True, return_counts=True)
    large = (jobs >= 0) & (sizes >= 64)
    longer = 1 / state.speed[first[large]]
    # Jobs that are met are slow as often as those that start; each delay is exponential.
    expected = 1 + LARGE.chance * 0.34
    error = np.sqrt(LARGE.chance * 2 * 0.34**2 / large.sum())
    assert longer.mean() == pytest.approx(expected, abs=4 * error)
    some = 1 / state.speed[first[(jobs >= 0) & (sizes == 1)]]
    assert set(np.round(some[some > 1.33], 2)) <= {np.float32(1.34)}


def test_calibration_incidents_come_at_their_rates() -> None:
    scenario = STEADY.with_(
        hosts=4_000, load=EMPTY, faults=Faults(per_1000_node_days=0), step_s=3_600
    )
    week = FleetModel(scenario, CATALOGUE).at(scenario.start_s, 7 * DAY_S)
    chances = 1 - np.exp(-incident_rates(CATALOGUE, 1.0) * 7 * DAY_S)
    for place, chance in enumerate(chances):
        met = int(((week.incidents >> np.uint64(place)) & np.uint64(1)).sum())
        assert coverage(met, 4_000, confidence=0.9999).consistent_with(chance)
    assert chances.sum() == pytest.approx(0.52, abs=0.001)


def test_calibration_noise_is_what_the_planner_predicts() -> None:
    """The noise of a sum over all hosts, within 5 % of `pointillist plan`, for every section."""
    plan = default_plan()
    shapes = catalogue_shapes(plan, CATALOGUE)
    hosts, cells = plan.hosts, 1_200
    for task in plan.tasks:
        for section in task.sections[:2]:
            shape = shapes[section.name]
            figures = section_figures(plan, task, section, shape)
            sigma = np.full(cells, figures.sigma_local_1024, dtype=np.int64)
            summed = sum(
                SeededSampler(7, f"{section.name} {lo}").sample(500, sigma).sum(axis=0)
                for lo in range(0, hosts, 500)
            )
            predicted = figures.sigma_released * np.sqrt(shape.delta_sq)
            assert np.std(summed) == pytest.approx(predicted, rel=0.05)
            assert figures.sigma_local_1024 > 2 * SIGMA_UNIT
