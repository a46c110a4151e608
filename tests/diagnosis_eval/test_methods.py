"""Every compared method speaks of the same runs; none knows the future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diagnosis.detect.features import FEATURE_GROUPS
from diagnosis.detect.findings import Cause
from pointillist.teaching.account import Account
from pointillist.teaching.comparison import ablation, all_methods, choose_open_set, judged_by
from pointillist.teaching.evaluation import MethodEvaluation
from pointillist.teaching.figures import accuracy, pairs_of, single
from pointillist.teaching.method_port import Prepared
from pointillist.teaching.methods.deviations import BINS, Deviations, strongest
from pointillist.teaching.methods.learned import Blinded, HandRules
from pointillist.teaching.methods.spike_attribution import cause_of, ranked
from pointillist.teaching.outcomes import Judged
from pointillist.teaching.prepare import prepare
from pointillist.teaching.recorded_runs import RecordedRun
from pointillist.teaching.splits import split

pytestmark = pytest.mark.slow


def judged_of(evaluation: MethodEvaluation, name: str) -> Sequence[Judged]:
    return next(one.judged for one in evaluation.compared if one.name == name)


@pytest.mark.parametrize("name", ["3-sigma", "MAD", "GMM (eACGM)", "hand rules", "forest"])
def test_method_names_the_cause_of_clear_faults(evaluation: MethodEvaluation, name: str) -> None:
    pairs = [pair for run in judged_of(evaluation, name) for pair in pairs_of(run)]
    known = [(truth, answer) for truth, answer in pairs if truth is not Cause.UNKNOWN]
    assert accuracy(known) >= 0.8


def test_every_method_is_judged_by_the_same_runs(evaluation: MethodEvaluation) -> None:
    runs = {tuple(run.run for run in one.judged) for one in evaluation.compared}
    assert len(evaluation.compared) == len(all_methods("knn"))
    assert len(runs) == 1
    assert not set(runs.pop()) & set(evaluation.divided.train)


def test_learned_model_calls_a_fault_nobody_taught_unknown(evaluation: MethodEvaluation) -> None:
    outcomes = single(judged_of(evaluation, "logistic"))
    strange = [one.unlike for one in outcomes if one.episode.causes == (Cause.UNKNOWN,)]
    known = [one.unlike for one in outcomes if one.episode.causes != (Cause.UNKNOWN,)]
    assert strange
    assert min(strange) > np.median(known)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4])
def test_simple_method_says_the_same_whatever_comes_later(
    made_up_runs: Sequence[RecordedRun], prepared: Sequence[Prepared], number: int
) -> None:
    method = all_methods("knn")[number]
    method.fit([run for run in prepared if run.name in split(r.run.facts for r in prepared).train])
    whole = next(run for run in prepared if run.name == "disk_io-stress-high")
    until = 52
    cut = prepare(replace_frames(whole.run, until))
    assert words(method.account(cut), until) == words(method.account(whole), until)


def replace_frames(run: RecordedRun, seconds: int) -> RecordedRun:
    return replace(run, frames=run.frames[:seconds])


def words(account: Account, until_s: int) -> list[tuple[int, int, Cause]]:
    return [
        (spell.known_ns, said.at_ns, said.cause)
        for spell in account.spells
        for said in spell.said
        if said.at_ns <= until_s * 1_000_000_000
    ]


def test_deviations_do_not_learn_a_fault_as_usual(prepared: Sequence[Prepared]) -> None:
    run = next(one for one in prepared if one.name == "disk_io-stress-high")
    spells = Deviations(robust=True).account(run).spells
    assert len(spells) == 1
    assert {said.cause for said in spells[0].said} == {Cause.DISK_IO}


def test_lagged_correlation_finds_the_signal_that_came_first() -> None:
    drawn = np.random.default_rng(3)
    latency = drawn.normal(size=BINS)
    noise = drawn.normal(size=BINS)
    leading = np.roll(latency, -5)
    found = strongest(latency, np.stack([noise, leading, np.full(BINS, 4.0)]), BINS)
    assert found[1] > 0.9
    assert found[0] < 0.6
    assert found[2] == 0


def test_attribution_ranks_causes_by_their_strongest_channel() -> None:
    assert cause_of("own.throttled_delay_ms_per_s") is Cause.CGROUP_THROTTLING
    assert cause_of("own.cpu_ms_per_s") is None
    causes = (Cause.DISK_IO, Cause.CPU_CONTENTION, Cause.DISK_IO, None)
    assert ranked([1.0, 4.0, 5.0, 9.0], 3.0, causes) == [
        (Cause.DISK_IO, 5.0),
        (Cause.CPU_CONTENTION, 4.0),
    ]


def test_open_set_is_chosen_by_training_runs_alone(prepared: Sequence[Prepared]) -> None:
    train = [run for run in prepared if run.name.split("-")[1] == "stress"]
    assert choose_open_set("logistic", ("knn", "gmm"), train) in {"knn", "gmm"}


def test_blinded_method_says_the_same_when_it_sees_all_and_nothing_when_blind(
    prepared: Sequence[Prepared],
) -> None:
    whole = [pairs_of(run) for run in judged_by(HandRules(), prepared)]
    seeing = judged_by(Blinded(None, lambda _: True), prepared)
    assert [pairs_of(run) for run in seeing] == whole
    blind = judged_by(Blinded(None, lambda _: False), prepared)
    assert {answer for run in blind for _, answer in pairs_of(run)} <= {Cause.UNKNOWN, None}


def test_ablation_asks_about_each_group_of_signals_once(
    prepared: Sequence[Prepared], made_up_runs: Sequence[RecordedRun]
) -> None:
    divided = split(run.facts for run in made_up_runs)
    found = ablation(lambda keep: Blinded(None, keep), prepared, divided)
    assert [one.group for one in found] == list(dict.fromkeys(FEATURE_GROUPS))
    by_group = {one.group: one for one in found}
    assert by_group["gpu_error"].alone < by_group["pressure"].alone
