"""The fleet over time: load, jobs over many hosts, faults, upgrades; the same again from a seed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.hosts import IDLE, FleetState
from simulator.fleet.jobs import busy_target
from simulator.scenario import (
    Adversaries,
    Applications,
    Dropout,
    FailSlow,
    Faults,
    FlashCrowd,
    FleetLoad,
    Jobs,
    Scenario,
    Upgrades,
    load,
)
from tests.window_kit import CATALOGUE

pytestmark = pytest.mark.release

STEADY = load("steady")
QUIET = Faults(per_1000_node_days=0, incidents_scale=0)
HOUR = 3_600


def fleet(hosts: int = 400, **changes: object) -> FleetModel:
    return FleetModel(STEADY.with_(hosts=hosts, **changes), CATALOGUE)


def same(one: FleetState, other: FleetState) -> bool:
    arrays = [f.name for f in fields(FleetState) if f.name not in {"inventory", "start_s"}]
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in arrays)


def place_of(application: str) -> tuple[int, np.uint64]:
    place = CATALOGUE.section("applications_seen").index(application)
    return place // 64, np.uint64(1) << np.uint64(place % 64)


def test_fleet_model_repeats_from_its_seed_whatever_was_asked() -> None:
    scenario = STEADY.with_(hosts=300, faults=Faults(per_1000_node_days=500, lemon_share=0.1))
    first, second = FleetModel(scenario, CATALOGUE), FleetModel(scenario, CATALOGUE)
    for minute in range(90):
        step = first.at(scenario.start_s + 60 * minute, 60)
    second.advance(scenario.start_s + 60 * 40)
    jump = second.at(scenario.start_s + 60 * 89, 60)
    assert same(step, jump)
    assert first.counts == second.counts
    hour = [one.at(scenario.start_s, HOUR) for one in (first, second)]
    assert np.array_equal(hour[0].seen, hour[1].seen)
    other = FleetModel(replace(scenario, seed=99), CATALOGUE)
    assert not same(other.at(scenario.start_s + 60 * 89, 60), step)


def test_fleet_model_inventory_follows_the_shares() -> None:
    inventory = fleet(1_000).inventory
    assert np.bincount(inventory.operator).tolist() == [400, 300, 200, 100]
    assert (np.diff(inventory.operator) >= 0).all()
    models = np.bincount(inventory.gpu_model, minlength=12)
    names = CATALOGUE.classes("gpu_model")
    counted = {names[i]: n for i, n in enumerate(models[: len(names)]) if n}
    assert counted == {"A100": 250, "H100": 600, "B200": 150}
    assert inventory.total_gpus == 8_000
    assert (np.bincount(inventory.leaf)[:-1] == 32).all()
    assert set(inventory.link_gbit[inventory.gpu_model == names.index("A100")]) == {200}


@pytest.mark.parametrize("busy_share", [0.1, 0.7])
def test_fleet_model_meets_the_load(busy_share: float) -> None:
    load_ = FleetLoad(busy_share=busy_share, diurnal_amplitude=0.1, weekend_drop=0.2)
    model = fleet(1_500, load=load_, jobs=Jobs(largest_gpus=64), faults=QUIET, step_s=60)
    errors = []
    for quarter in range(96):
        state = model.at(STEADY.start_s + 900 * quarter, 900)
        held = state.busy @ model.inventory.gpus / model.inventory.total_gpus
        errors.append(held - busy_target(load_, model.now_s - 60))
    assert abs(np.mean(errors)) < 0.02
    assert np.std(errors) < 0.03


def test_load_is_diurnal_and_its_week_has_the_mean_that_was_asked() -> None:
    load_ = FleetLoad(busy_share=0.5, diurnal_amplitude=0.3, peak_hour_utc=15, weekend_drop=0.2)
    monday = 1_767_571_200
    week = [busy_target(load_, monday + 60 * minute) for minute in range(7 * 1_440)]
    assert np.mean(week) == pytest.approx(0.5, rel=1e-3)
    assert np.argmax(week[:1_440]) == 15 * 60
    assert week[5 * 1_440] == pytest.approx(0.8 * week[0])
    assert busy_target(FleetLoad(busy_share=0.9, diurnal_amplitude=0.9), monday + 15 * HOUR) == 0.98


def test_wide_jobs_share_hosts_ranks_and_the_pace_of_the_slowest() -> None:
    shares = {"recommendation": 1.0}
    model = fleet(
        faults=QUIET, jobs=Jobs(elastic_share=0), applications=Applications(shares=shares),
        fail_slow=FailSlow(enabled=False), load=FleetLoad(straggler_share=0.2),
    )  # fmt: skip
    state = model.at(STEADY.start_s, 60)
    jobs, hosts = np.unique(state.job[state.job != IDLE], return_counts=True)
    assert hosts.max() >= 8
    for job in jobs[hosts >= 3]:
        members = np.flatnonzero(state.job == job)
        assert len(np.unique(model.inventory.operator[members])) == 1
        assert len(np.unique(state.application[members])) == 3
        assert np.ptp(state.speed[members]) == 0
        assert state.speed[members[0]] == model.inventory.pace[members].min()
    alone = jobs[hosts == 1]
    where = np.isin(state.job, alone)
    assert (state.speed[where] == model.inventory.pace[where]).all()


def test_elastic_jobs_begin_small_and_grow() -> None:
    jobs = Jobs(elastic_share=1, growth_minutes=5, largest_gpus=256)
    model = fleet(1_000, jobs=jobs, faults=QUIET)
    above = []
    for step in range(24):
        state = model.at(STEADY.start_s + 300 * step, 300)
        held = state.busy @ model.inventory.gpus / model.inventory.total_gpus
        above.append(held - busy_target(STEADY.load, model.now_s))
    assert model.counts["jobs grown"] > 20
    # What a job will grow to is kept free for it, so the load is below its mean, never above.
    assert -0.15 < np.mean(above) < 0.0
    assert max(above) < 0.02


def test_flash_crowd_is_absent_before_and_a_third_after() -> None:
    crowd = FlashCrowd(application="video_generation", begin_hours=2, ramp_hours=1, share=0.33)
    model = fleet(1_500, applications=Applications(flash_crowd=crowd), faults=QUIET)
    word, bit = place_of("video_generation")
    before = model.at(STEADY.start_s, 2 * HOUR)
    assert not (before.seen[:, word] & bit).any()
    model.at(STEADY.start_s + 2 * HOUR, 2 * HOUR)
    started = int(model.counts["placements compute"])
    after = model.at(STEADY.start_s + 4 * HOUR, 4 * HOUR)
    assert int(model.counts["placements compute"]) > started
    assert (after.seen[:, word] & bit).astype(bool).mean() > 0.08


def test_faults_stop_jobs_and_take_hosts_out_of_service() -> None:
    faults = Faults(per_1000_node_days=3_000, repair_hours=10, incidents_scale=0)
    model = fleet(faults=faults, dropout=Dropout(share=0, late_share=0))
    state = model.at(STEADY.start_s, 6 * HOUR)
    broken = state.hardware != 0
    assert 0.4 < broken.mean() < 0.65
    out = ~state.present
    assert 0.25 < out.mean() < 0.5
    assert broken[out].all()
    assert (state.job[out] == IDLE).all()
    assert model.counts["wide jobs interrupted"] > 0
    assert model.counts["jobs restarted"] > 0
    bits = int(np.bitwise_or.reduce(state.hardware))
    assert bits < 1 << 18
    switch = np.uint64(1) << np.uint64(CATALOGUE.classes("hardware_fault").index(
        "network_switch_or_cable"))  # fmt: skip
    loss = np.uint64(1) << np.uint64(CATALOGUE.classes("incident").index("nic_limit_or_loss"))
    leaves = np.unique(model.inventory.leaf[(state.hardware & switch) != 0])
    under = np.isin(model.inventory.leaf, leaves)
    assert ((state.incidents[under] & loss) != 0).all()


def test_fault_bits_are_in_the_window_in_which_it_struck() -> None:
    faults = Faults(per_1000_node_days=20_000, repair_hours=0.01, incidents_scale=50)
    model = fleet(100, faults=faults)
    minutes = [model.at(STEADY.start_s + 60 * minute, 60) for minute in range(60)]
    hour = model.at(STEADY.start_s, HOUR)
    for name in ("hardware", "incidents"):
        together = np.bitwise_or.reduce([getattr(state, name) for state in minutes])
        assert np.array_equal(together, getattr(hour, name))
        assert together.any()
    assert int((hour.hardware != 0).sum()) > 30


def test_seen_holds_what_ran_in_the_window_and_nothing_else() -> None:
    jobs = Jobs(sizes="philly", durations="seren")
    model = fleet(200, faults=QUIET, load=FleetLoad(busy_share=0.8), jobs=jobs)
    ran = np.zeros((200, 4), dtype=np.uint64)
    for minute in range(120):
        state = model.at(STEADY.start_s + 60 * minute, 60)
        busy = np.flatnonzero(state.application != IDLE)
        for host in busy:
            word, bit = place_of(model.applications[state.application[host]].workload.application)
            assert state.seen[host, word] & bit
            ran[host, word] |= bit
    both = model.at(STEADY.start_s, 2 * HOUR)
    assert (both.seen & ran == ran).all()
    later = model.at(STEADY.start_s + 2 * HOUR, 60)
    few = np.unpackbits(later.seen.view(np.uint8), axis=1).sum(axis=1)
    many = np.unpackbits(both.seen.view(np.uint8), axis=1).sum(axis=1)
    assert few.mean() < 1.3 < many.mean()


def test_lemons_are_exchanged_after_so_many_faults() -> None:
    faults = Faults(per_1000_node_days=0, lemon_share=0.2, lemon_faults_per_day=48,
                    lemon_quarantine_faults=3, repair_hours=0.01)  # fmt: skip
    model = fleet(100, faults=faults)
    model.at(STEADY.start_s, 12 * HOUR)
    lemons = int(model.inventory.lemon.sum())
    assert 5 < lemons < 40
    assert model.counts["lemons exchanged"] == lemons
    struck = sum(count for name, count in model.counts.items() if name.startswith("fault "))
    assert struck == 3 * lemons


def test_upgrades_silence_hosts_in_waves_and_leave_their_jobs() -> None:
    upgrades = Upgrades(every_hours=1, wave_share=0.1, wave_minutes=10, down_minutes=9)
    model = fleet(upgrades=upgrades, faults=QUIET, dropout=Dropout(share=0, late_share=0))
    before = model.at(STEADY.start_s + HOUR - 60, 60)
    assert before.present.all()
    silent = [model.at(STEADY.start_s + HOUR + 600 * wave, 60) for wave in range(10)]
    assert [int((~state.present).sum()) for state in silent] == [40] * 10
    assert np.array([~state.present for state in silent]).sum(axis=0).tolist() == [1] * 400
    assert (silent[0].job[~silent[0].present] != IDLE).any()


def test_mass_restart_silences_one_operator() -> None:
    adversaries = Adversaries(mass_restart_hour=0.5)
    model = fleet(adversaries=adversaries, faults=QUIET, dropout=Dropout(share=0, late_share=0))
    state = model.at(STEADY.start_s + 1_800, 60)
    assert ((model.inventory.operator == 0) == ~state.present).all()
    assert model.at(STEADY.start_s + 2_400, 60).present.all()


def test_dropout_and_lateness_have_their_shares() -> None:
    model = fleet(4_000, dropout=Dropout(share=0.4, late_share=0.1), faults=QUIET)
    states = [model.at(STEADY.start_s + 60 * minute, 60) for minute in range(5)]
    assert np.mean([state.present.mean() for state in states]) == pytest.approx(0.6, abs=0.015)
    assert np.mean([state.late.mean() for state in states]) == pytest.approx(0.1, abs=0.01)
    assert (states[0].reporting == (states[0].present & ~states[0].late)).all()
    assert (states[0].present != states[1].present).any()


def test_fleet_model_says_what_share_was_recorded() -> None:
    shares = {"llm_inference": 1.0}
    shapes = load("ten_percent_load").shapes
    recorded = fleet(shapes=shapes, applications=Applications(shares=shares))
    assert recorded.recorded_share(recorded.at(STEADY.start_s, 60)) == 1.0
    mixed = fleet(applications=Applications(shares=shares))
    share = mixed.recorded_share(mixed.at(STEADY.start_s, 60))
    assert share == pytest.approx(0.6, abs=0.15)  # of the hosts that are H100
    variants = fleet(applications=Applications(shares={"benchmark": 1.0}))
    assert variants.recorded_share(variants.at(STEADY.start_s, 60)) == 0.0


@pytest.mark.parametrize("hosts", [1, 3])
def test_fleet_model_of_hardly_any_hosts_works(hosts: int) -> None:
    model = fleet(hosts, load=FleetLoad(busy_share=0.98), faults=Faults(per_1000_node_days=1_000))
    states = [model.at(STEADY.start_s + HOUR * hour, HOUR) for hour in range(6)]
    assert all(state.hosts == hosts for state in states)
    assert any((state.application != IDLE).any() for state in states)


def test_fleet_model_refuses_windows_that_it_cannot_know() -> None:
    scenario: Scenario = STEADY.scaled(hosts=10)
    model = FleetModel(scenario, CATALOGUE, keep_s=600)
    with pytest.raises(ValueError, match="expected a window from 1770854400 on, got 1770854340"):
        model.at(scenario.start_s - 60, 60)
    model.at(scenario.start_s + HOUR, 60)
    with pytest.raises(ValueError, match="expected a window from 1770857460 on"):
        model.at(scenario.start_s, 60)
