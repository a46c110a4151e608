"""Real traces through the replay source: families, applications, and the window they make."""

from statistics import mean

import pytest

from bench.families import LABELS, accuracy_by_time, read_labels
from collectors.records.activity import KernelActivity
from collectors.replay.replay_source import ReplaySource
from kernels.families import FamilyRules, pipeline_applications
from kernels.launches.kineto import gpu_events
from tests.shared_data import shared_data
from wire.catalogue import Catalogue

TRACES = (
    "b200-moe-fp4-eager",
    "h100-Falconsai_nsfw_image_detection__1016002",
    "h100-Qwen_Qwen1.5-0.5B-Chat__1016005",
    "h100-facebook_timesformer-base-finetuned-k400__1016002",
    "h100-gaunernst_bert-small-uncased__1016001",
    "h100-google_owlv2-large-patch14-ensemble__1016001",
    "v100-dlrm-8rank-worker0",
    "v100-dlrm-8rank-worker3",
    "v100-dlrm-8rank-worker7",
    "v100-train-nccl",
)
SECOND = 10**9


@pytest.mark.release
def test_families_other_is_below_one_percent_at_the_median_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rules = FamilyRules.load(families=Catalogue.load().classes("family"))
    shares = []
    for trace in TRACES:
        other = whole = 0
        for event in gpu_events(shared_data(f"kineto/{trace}.json.gz")):
            whole += event.duration_ns
            other += event.duration_ns * (rules.classify(event.name)[0] == "other")
        shares.append(100 * other / whole)
    shares.sort()
    with capsys.disabled():
        print(
            f"\nGPU time in family 'other' over {len(shares)} traces, percent: "
            f"median {shares[len(shares) // 2]:.3f}, 90th {shares[len(shares) * 9 // 10]:.3f}, "
            f"worst {shares[-1]:.3f}"
        )
    assert shares[len(shares) // 2] < 1.0
    assert shares[-1] < 5.0


def test_families_are_right_for_most_gpu_time_of_labelled_traces() -> None:
    kernels = read_labels(shared_data(LABELS))
    found = accuracy_by_time(kernels, FamilyRules.load())
    assert min(found.values()) >= 80
    assert mean(found.values()) >= 95


def test_families_and_applications_name_classes_of_the_catalogue() -> None:
    catalogue = Catalogue.load()
    FamilyRules.load(families=catalogue.classes("family"))
    assert set(pipeline_applications().values()) <= set(catalogue.classes("application"))


@pytest.mark.parametrize(
    ("trace", "application", "share", "families"),
    [
        ("h100-Qwen_Qwen1.5-0.5B-Chat__1016005", "llm_inference", 0.92, {"gemm", "attention"}),
        ("v100-dlrm-8rank-worker0", "unknown", 0.53, {"communication", "embedding", "sort_scan"}),
        ("b200-moe-fp4-eager", "unknown", 0.14, {"moe", "communication", "quantize_activation"}),
    ],
)
def test_replay_real_trace_keeps_its_busy_share(
    trace: str, application: str, share: float, families: set[str]
) -> None:
    path = shared_data(f"kineto/{trace}.json.gz")
    source = ReplaySource(path, FamilyRules.load(), gpus=1)
    source.start()
    seen = []
    for step in range(21):
        drained = source.drain(1_000 * SECOND + step * SECOND // 10)
        seen += [r for r in drained if isinstance(r, KernelActivity)]
    source.stop()
    busy_ns = sum(record.gpu_time_ns or 0 for record in seen)
    assert busy_ns / (2 * SECOND) == pytest.approx(share, abs=0.03)
    assert families <= {record.family for record in seen}
    assert {record.application for record in seen} == {application}
    assert {record.gpu for record in seen} == {0}
