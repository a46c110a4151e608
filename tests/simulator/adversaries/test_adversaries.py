"""Hosts, Leaders, networks and membership inference that do not follow the protocol."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from simulator.adversaries.attacks import (
    HOST_ATTACKS,
    LEADER_ATTACKS,
    Movement,
    Played,
    move_statistic,
    play_leader_attack,
    play_scenario,
)
from simulator.adversaries.cohort import SMALL, Cohort, CohortPlan
from simulator.adversaries.lossy_network import FAULTS, face
from simulator.adversaries.membership_inference import (
    epsilon_bound,
    gaussian_bound,
    infer_application,
    infer_without_mask,
    infer_working,
)
from simulator.scenario import Dropout, load
from wire.rejection import Reason
from wire.task import Task

pytestmark = pytest.mark.release

LIARS = 4
IMPOSSIBLE = ("far_beyond", "spread")


@cache
def lie(name: str, liars: int = LIARS) -> Movement:
    return move_statistic(name, liars)


@cache
def whole_budget() -> Task:
    """A task that spends the whole budget, so that its releases are as telling as any may be."""
    weights = {"application_mix": 500_000, "applications_seen": 500_000}
    with Cohort(CohortPlan(weights=weights, windows=4)) as cohort:
        return cohort.task


@pytest.mark.parametrize("name", sorted(set(HOST_ATTACKS) - {"beyond_bound", *IMPOSSIBLE}))
def test_lying_hosts_move_a_sum_by_no_more_than_their_bound(name: str) -> None:
    found = lie(name)
    assert found.bounded
    assert abs(found.moved) <= found.bound
    assert found.elsewhere <= found.bound
    assert found.accepted >= found.hosts - LIARS


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("replay", Reason.WINDOW_LATE),
        ("forged_id", Reason.HOST_UNKNOWN),
        ("poisoned_share", Reason.CHECK_WORDS),
        ("second_report", Reason.SECOND_REPORT),
    ],
)
def test_lie_is_refused_and_named(name: str, reason: Reason) -> None:
    found = lie(name)
    assert found.refused[reason.value] == LIARS
    # And the others' sum is exact: nobody else is harmed.
    assert (found.moved, found.elsewhere) == (0.0, 0)


def test_absurd_readings_are_worth_their_bound_and_no_more() -> None:
    found = lie("out_of_range")
    assert found.accepted == found.hosts
    assert found.moved > 0.9 * found.bound


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_sum_that_no_hosts_can_have_is_suppressed(name: str) -> None:
    """By one host, whatever the mask hides: a million steps, or noise where nothing can be."""
    found = lie(name, 1)
    assert (found.accepted, found.reason) == (0, "impossible_sum")


def test_replaced_agent_is_not_bounded_within_the_possible_and_said_so() -> None:
    """The mask hides its vector from everybody: documented, not detected."""
    found = lie("beyond_bound")
    assert not found.bounded
    assert found.moved == 10 * found.bound
    assert found.refused == {}


def test_liars_beyond_the_cohorts_slack_stop_the_release() -> None:
    found = lie("poisoned_share", 9)
    assert (found.accepted, found.reason) == (0, "n_min")


@pytest.mark.parametrize("trick", LEADER_ATTACKS)
def test_leader_never_gets_two_sums_of_one_window(trick: str) -> None:
    assert play_leader_attack(trick).sums <= 1


@pytest.mark.parametrize(
    ("trick", "answer"),
    [
        ("all_colluders", "n_min"),
        ("other_signature", "batch_signature"),
        ("split_batch", "answered_otherwise"),
        ("replay_batch", "share"),
    ],
)
def test_leader_attack_is_answered_and_the_honest_window_released(trick: str, answer: str) -> None:
    found = play_leader_attack(trick)
    assert found.answer == answer
    assert found.released


@pytest.mark.parametrize("trick", ["drop_hosts", "forged_host"])
def test_leader_that_drops_hosts_loses_the_honest_window(trick: str) -> None:
    """It may ask about fewer hosts, down to n_min; the answer is final."""
    found = play_leader_attack(trick)
    assert (found.answer, found.released) == ("share", False)
    assert found.cleared == ({"tag": 2} if trick == "forged_host" else {})


def test_altered_share_is_no_share_of_the_helpers() -> None:
    """Whoever stands between the parties cannot change a sum; the window waits, unreleased."""
    found = play_leader_attack("alter_share")
    assert (found.answer, found.released) == ("share_signature", False)


@pytest.mark.parametrize("fault", FAULTS)
def test_releases_under_faults_are_true_sums(fault: str) -> None:
    found = face(fault, 0.1 if fault != "clock_skew" else 5.0, windows=2)
    assert found.true_sums
    assert found.in_releases <= found.sent


def test_duplicates_are_counted_and_change_nothing() -> None:
    found = face("duplicates", 1.0, windows=2)
    assert found.refused == {"duplicate": found.sent}
    assert found.reports_released_percent == 100.0


def test_clock_far_ahead_costs_the_hosts_report_alone() -> None:
    found = face("clock_skew", 120.0, windows=2)
    assert found.refused == {"epoch_interval": 8}
    assert found.in_releases == found.sent - 8


def test_helper_that_comes_back_answers_what_it_missed() -> None:
    assert face("helper_loss", 1.0, windows=2).released == 2


def test_dropout_beyond_the_cohorts_minimum_releases_nothing() -> None:
    found = face("dropout", 0.4, windows=2)
    assert found.released == 0
    assert found.reasons == {"n_min": 2}
    assert found.reports_released_percent == 0.0


def test_inference_of_a_week_stays_under_the_bound() -> None:
    found = infer_working([whole_budget()], 32_000)
    assert found.holds
    # And comes near the exact trade-off: the attack is as good as any.
    assert found.advantage > 0.7 * found.tight_bound


def test_inference_against_too_little_noise_breaks_the_bound() -> None:
    task = whole_budget()
    weak = [replace(spec, sigma_1024=spec.sigma_1024 // 2) for spec in task.sections]
    assert not infer_working([replace(task, sections=tuple(weak))], 32_000).holds


def test_inference_of_the_application_stays_under_the_bound() -> None:
    found = infer_application([whole_budget()], 25, 8_000)
    assert found.holds
    assert found.advantage > 0.0


def test_masked_vector_alone_tells_nothing() -> None:
    assert infer_without_mask(whole_budget(), 2_000).holds


def test_bounds_of_an_advantage_by_known_values() -> None:
    assert epsilon_bound(2.0, 0.0) == pytest.approx(0.76159, abs=1e-5)  # tanh(1)
    assert gaussian_bound(0.351549815) == pytest.approx(0.13953, abs=1e-5)
    assert gaussian_bound(0.0, 25) == pytest.approx(0.0, abs=1e-12)


def test_scenario_names_what_it_is_up_against() -> None:
    found = play_scenario(load("adversaries"), SMALL)
    asked = load("adversaries").adversaries
    assert {one.lie for one in found.lies} == set(asked.lies)
    assert {one.trick for one in found.tricks} == set(asked.leader)
    assert {one.fault for one in found.faults} == {
        "duplicates", "reordering", "helper_loss", "clock_skew", "mass_restart", "dropout",
    }  # fmt: skip
    assert all(one.true_sums for one in found.faults)
    nobody = load("steady").with_(dropout=Dropout(share=0.0))
    assert play_scenario(nobody, SMALL) == Played((), (), ())


def test_adversaries_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="whistle"):
        move_statistic("whistle", 1)
    with pytest.raises(ValueError, match="whistle"):
        play_leader_attack("whistle")
    with pytest.raises(ValueError, match="whistle"):
        face("whistle", 0.1)
