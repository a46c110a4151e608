"""The run plan, the impact gate, and what a workload shares with the bench."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.diagnosis.disturbance import Disturbance, Spent, too_much
from bench.diagnosis.faults.fault import GROWING, Effect
from bench.diagnosis.faults.registry import INJECTORS, NAMED, UNNAMED
from bench.diagnosis.impact import impact
from bench.diagnosis.plan import Run, plan
from bench.diagnosis.shared import Knobs, StepLog
from bench.diagnosis.sitting import pending, recording_path
from bench.diagnosis.workload import STEP_LOOP
from diagnosis.detect.findings import Cause

MS = 1_000_000
GPU_CAUSES = {
    Cause.PCIE_PRESSURE,
    Cause.GPU_THERMAL_OR_POWER_LIMIT,
    Cause.GPU_HARDWARE_FAULT,
    Cause.GPU_SHARED,
}

QUIET = {
    "steal_cores": 0.02, "others_cores": 0.04, "nice_cores": 0.0, "worst_others_cores": 0.3,
    "worst_steal_cores": 0.0,
}  # fmt: skip


def steps(durations_ms: list[float], start_ms: float = 0) -> list[tuple[int, int]]:
    """Steps one after the other: (ended, duration)."""
    ends = itertools.accumulate(durations_ms, initial=start_ms)
    next(ends)
    return [(round(end * MS), round(one * MS)) for end, one in zip(ends, durations_ms, strict=True)]


def test_plan_has_two_injectors_for_every_cause_that_needs_no_gpu() -> None:
    wanted = {str(cause) for cause in Cause} - {str(cause) for cause in GPU_CAUSES} - {"unknown"}
    assert Counter(kind.cause for kind in NAMED) == dict.fromkeys(wanted, 2)
    assert {kind.cause for kind in UNNAMED} == {"unknown"}


def test_plan_crosses_every_injector_with_every_intensity_on_the_step_loop() -> None:
    crossed = Counter(
        (run.injectors[0], run.intensity)
        for run in plan(rounds=1)
        if run.workload == STEP_LOOP and len(run.injectors) == 1 and run.intensity != GROWING
    )
    expected = itertools.product(INJECTORS, range(3))
    assert crossed == Counter(expected)


def test_sitting_leaves_out_what_is_recorded(tmp_path: Path) -> None:
    runs = plan(rounds=1)
    recording_path(tmp_path, runs[3]).touch()
    assert pending(runs, tmp_path) == [*runs[:3], *runs[4:]]


def test_run_names_its_seed_so_that_a_repeat_is_another_recording() -> None:
    run = Run(STEP_LOOP, ("loss",), 1, 1)
    assert run.name == "step_loop-loss-middle-1"
    assert replace(run, seed=2).name != run.name


def test_impact_passes_when_the_tail_grows_by_three_tenths() -> None:
    before = steps([10.0] * 200)
    during = steps([10.0] * 150 + [14.0] * 50, 2000)
    found = impact(before, during)
    assert found.passed
    assert found.ratio == pytest.approx(1.4)
    assert found.onset_ns == round((2000 + 150 * 10 + 14) * MS)


def test_impact_does_not_pass_when_only_the_middle_moves_a_little() -> None:
    found = impact(steps([10.0] * 200), steps([12.0] * 200, 2000))
    assert not found.passed
    assert found.onset_ns is None


def test_impact_onset_needs_another_long_step_within_three_seconds() -> None:
    lonely = [10.0] * 10 + [20.0] + [10.0] * 400
    found = impact(steps([10.0] * 200), steps([*lonely, 20.0, 20.0], 2000))
    assert found.onset_ns == round((2000 + 410 * 10 + 20 + 20) * MS)


def test_impact_without_a_step_before_does_not_pass() -> None:
    assert not impact([], steps([50.0] * 100)).passed


def test_effect_is_shown_from_its_least_growth_on() -> None:
    assert Effect("stops", 1.0, 3.0, 2.0).shown
    assert not Effect("stops", 1.0, 2.9, 2.0).shown


def test_knobs_are_seen_through_another_mapping_of_the_file(tmp_path: Path) -> None:
    mine, workloads = Knobs(tmp_path), Knobs(tmp_path)
    mine["peer_delay_ms"] = 12.5
    workloads.add("stops", 2)
    assert workloads["peer_delay_ms"] == 12.5
    assert mine["stops"] == 2
    mine.reset()
    assert workloads["peer_delay_ms"] == 0
    assert workloads["batch_scale"] == 1
    assert workloads["stops"] == 2


def test_step_log_gives_back_the_steps_of_a_stretch(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    for step in range(70_000):
        log.add(step * 10, 7)
    assert len(log) == 70_000
    assert log.between(0, 44_640) == []  # overwritten: it holds the last 65,536
    assert log.between(699_970, 1 << 62) == [(699_970, 7), (699_980, 7), (699_990, 7)]
    assert len(StepLog(tmp_path).between(0, 1 << 62)) == 65_536


def test_run_beside_which_others_took_too_much_is_named() -> None:
    calm = QUIET | {"others_cores": 0.1}
    assert too_much(calm) == ""
    assert too_much(calm | {"steal_cores": 0.41}) == "the hypervisor took 0.41 cores, at most 0.15"
    assert too_much(calm | {"others_cores": 0.31}) == "others took 0.31 cores, at most 0.3"


def test_run_beside_which_others_took_the_cpus_is_not_without_a_fault() -> None:
    calm = QUIET
    assert too_much(calm, calm=True) == ""
    assert (
        too_much(calm | {"nice_cores": 0.02}, calm=True) == "others took 0.06 cores, at most 0.05"
    )
    assert too_much(calm | {"nice_cores": 0.2}) == ""
    assert too_much(calm | {"steal_cores": 0.3}, calm=True) == ""


def test_run_that_others_disturbed_for_two_seconds_is_named() -> None:
    assert too_much(QUIET) == ""
    at_once = QUIET | {"worst_others_cores": 0.9}
    assert too_much(at_once) == "others at once took 0.90 cores, at most 0.4"


def test_two_seconds_of_a_neighbours_work_are_seen_in_the_worst_not_in_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy_s = list(itertools.accumulate([0.0] * 10 + [1.0, 1.0] + [0.0] * 10))
    spent = (Spent(float(at), busy, 0, 0, 0, 0) for at, busy in enumerate([*busy_s, busy_s[-1]]))
    monkeypatch.setattr(Spent, "now", lambda: next(spent))
    seen = Disturbance()
    for _ in busy_s[1:]:
        seen.look()
    found = seen.document()
    assert found["worst_others_cores"] == pytest.approx(1.0)
    assert found["others_cores"] == pytest.approx(2 / len(busy_s), abs=1e-3)
