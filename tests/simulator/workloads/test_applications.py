"""Applications: recordings as they are, variants that say so and follow their rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.applications import (
    Variant,
    VariantRow,
    Workload,
    WorkloadError,
    _variant,
    check_classes,
    derive,
    load_applications,
    load_workloads,
    numbered_applications,
)
from tests.window_kit import CATALOGUE
from transport.settings.config import build

RECORDINGS = {workload.name: workload for workload in load_workloads()}


def family_ns(workload: Workload, family: str) -> int:
    return sum(row.time_ns_per_step for row in workload.kernels if row.family == family)


def busy_ns(workload: Workload) -> float:
    return workload.step_ns * workload.busy_millionths / 1e6


def test_applications_are_25_at_least_and_ten_are_recorded() -> None:
    shipped = load_applications()
    assert sum(one.is_recording for one in shipped) == 10
    assert len({one.workload.application for one in shipped}) >= 25
    assert {one.group for one in shipped} == {one.workload.application for one in shipped}
    assert len({one.name for one in shipped}) == len(shipped)
    check_classes(
        [one.workload for one in shipped],
        CATALOGUE.classes("family"),
        CATALOGUE.classes("application"),
        CATALOGUE.classes("gpu_model"),
    )


def test_applications_that_are_variants_say_so() -> None:
    for one in load_applications():
        assert one.recording in RECORDINGS
        if one.is_recording:
            assert one.workload is not None
            assert one.workload.source.startswith("github.com/")
            assert one.workload == RECORDINGS[one.recording]
        else:
            assert one.name.endswith("_by_rule")
            assert isinstance(one.variant, VariantRow)
            assert one.variant.stands_for
            assert one.workload.kernels != RECORDINGS[one.recording].kernels


def test_variant_without_a_rule_is_the_recording() -> None:
    for recording in RECORDINGS.values():
        same = derive(recording, Variant(), recording.name, recording.application)
        assert same == replace(
            recording, busy_millionths=same.busy_millionths, step_ns=same.step_ns
        )
        assert same.busy_millionths == pytest.approx(recording.busy_millionths, abs=1)


def test_variant_rules_change_what_they_say() -> None:
    qwen = RECORDINGS["qwen1_5_0_5b_h100"]
    longer = derive(qwen, Variant(sequence=2.0), "x", "llm_inference")
    assert family_ns(longer, "attention") == pytest.approx(4 * family_ns(qwen, "attention"), 1e-3)
    assert family_ns(longer, "gemm") == pytest.approx(2 * family_ns(qwen, "gemm"), 1e-3)
    assert longer.step_ns - busy_ns(longer) == pytest.approx(qwen.step_ns - busy_ns(qwen), 1e-3)

    trained = derive(qwen, Variant(training=True, exchange=True), "x", "llm_training")
    assert family_ns(trained, "gemm") == 3 * family_ns(qwen, "gemm")
    assert family_ns(trained, "optimizer") > 0
    assert family_ns(trained, "communication") > 0
    launches = sum(row.launches_per_1000_steps for row in trained.kernels)
    assert launches > 2 * sum(row.launches_per_1000_steps for row in qwen.kernels)
    gemm = next(row for row in qwen.kernels if row.family == "gemm")
    assert trained.kernels[qwen.kernels.index(gemm)].duration_ns == gemm.duration_ns

    older = derive(qwen, Variant(gpu_model="A100"), "x", "llm_inference")
    assert older.gpu_model == "A100"
    assert family_ns(older, "gemm") == pytest.approx(989 / 312 * family_ns(qwen, "gemm"), 1e-3)
    assert family_ns(older, "elementwise") == pytest.approx(
        3350 / 2039 * family_ns(qwen, "elementwise"), 1e-3
    )

    first = derive(qwen, Variant(stage="first"), "x", "llm_training")
    last = derive(qwen, Variant(stage="last"), "x", "llm_training")
    assert family_ns(first, "embedding") > family_ns(last, "embedding")
    assert family_ns(last, "softmax") > family_ns(first, "softmax")


def test_applications_by_number_have_a_place_each_and_are_variants() -> None:
    many = numbered_applications(CATALOGUE, 250)
    assert len({one.workload.application for one in many}) == 250
    assert "unknown" not in {one.workload.application for one in many}
    assert not any(one.is_recording for one in many)
    assert len({one.workload.kernels for one in many}) == 250
    with pytest.raises(ValueError, match="expected 1 to 250 applications, got 251"):
        numbered_applications(CATALOGUE, 251)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recording": "none"}, r"variant\[x\]\.recording: expected one of .*, got 'none'"),
        ({"batches": 3}, r"batches: unknown key \(did you mean 'batch'\?\); expected one of"),
    ],
)
def test_variant_table_refuses_what_it_does_not_know(change: dict[str, object], told: str) -> None:
    entry = {"name": "x", "application": "x", "recording": "bert_small_h100", "stands_for": "x"}
    with pytest.raises(WorkloadError, match=told):
        _variant(build(VariantRow, entry | change, error=WorkloadError), RECORDINGS)
