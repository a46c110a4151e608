"""Which runs are for training: by run, by rule, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diagnosis.detect.findings import Cause
from pointillist.judging.runs import GROWING, RecordedRun, RunKind
from pointillist.judging.splits import HELD_OUT_WORKLOAD, Why, split
from tests.diagnosis_runs_kit import made_up_run


def test_split_holds_out_injector_intensity_and_the_unknown(
    made_up_runs: Sequence[RecordedRun],
) -> None:
    found = split(run.facts for run in made_up_runs)
    assert found.held_out["disk_io-twin-high"] == {Why.INJECTOR}
    assert found.held_out["disk_io-stress-middle"] == {Why.INTENSITY}
    assert found.held_out["unnamed-0"] == {Why.FAULT_TYPE}
    assert "disk_io-stress-low" in found.train


def test_split_holds_out_the_benchs_second_injector_growing_or_not() -> None:
    second = made_up_run("second", Cause.MEMORY_PRESSURE, injector="stress_vm").facts
    first = replace(second, name="first", faults=(replace(second.faults[0], injector="low_limit"),))
    growing = replace(first, name="growing", intensity=GROWING)
    unseen = replace(second, name="unseen", intensity=GROWING)
    found = split([first, second, growing, unseen])
    assert found.train == ("first", "growing")
    assert found.held_out == {"second": {Why.INJECTOR}, "unseen": {Why.INJECTOR}}


def test_split_lets_an_injector_that_was_looked_into_train_and_never_judge() -> None:
    peer = made_up_run("peer", Cause.DISK_IO, injector="slow_peer").facts
    relay = replace(
        peer, name="relay", faults=(replace(peer.faults[0], injector="delaying_relay"),)
    )
    middle = replace(relay, name="middle", intensity="middle")
    assert split([peer, relay, middle]).train == ("middle", "peer", "relay")
    unseen = replace(peer.faults[0], injector="throttled_peer")
    found = split([peer, relay, middle, replace(peer, name="unseen", faults=(unseen,))])
    assert found.held_out == {"unseen": {Why.INJECTOR}}


def test_split_leaves_no_run_on_both_sides(made_up_runs: Sequence[RecordedRun]) -> None:
    found = split(run.facts for run in made_up_runs)
    assert not set(found.train) & set(found.held_out)
    assert set(found.train) | set(found.held_out) == {run.facts.name for run in made_up_runs}


def test_split_holds_out_about_two_of_three_calm_runs_and_later_ones_move_none() -> None:
    calm = [made_up_run("calm", None, 70).facts]
    calm = [replace(calm[0], name=f"calm-{number}") for number in range(60)]
    early, late = split(calm[:20]), split(calm)
    assert 35 <= len(late.held_out) <= 45
    assert all(why == {Why.NO_FAULT} for why in late.held_out.values())
    assert set(early.train) <= set(late.train)
    assert set(early.held_out) <= set(late.held_out)


def test_split_holds_out_a_workload_and_overlaps() -> None:
    facts = made_up_run("elsewhere", Cause.DISK_IO, workload=HELD_OUT_WORKLOAD).facts
    pair = replace(facts, name="pair", kind=RunKind.OVERLAP, workload="step_loop")
    found = split([facts, pair])
    assert Why.WORKLOAD in found.held_out["elsewhere"]
    assert found.held_out["pair"] == {Why.OVERLAP}


def test_split_trains_on_a_cause_that_was_recorded_at_middle_intensity_alone() -> None:
    facts = made_up_run("only", Cause.DISK_IO,
                        intensity="middle", workload="loader").facts  # fmt: skip
    assert split([facts]).train == ("only",)
