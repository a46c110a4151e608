"""Application classes: mixes, thresholds, the open set, files, and the evaluation's own rules."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.families import all_profiles
from kernels import signatures
from kernels.kernel_mix import (
    KernelMix,
    MixMeasure,
    MixRow,
    distance,
    hellinger,
    mix_rows,
    operation,
)
from kernels.signature_learning import auroc, evaluate, jittered, resampled, wilson_interval
from kernels.signatures import Match, SignatureError, Signatures, calibrate
from tests.signature_kit import CHAT, SORTING, VISION, made, three_classes
from wire.catalogue import Catalogue

LAUNCHES = MixMeasure.LAUNCHES


def test_hellinger_is_zero_for_equal_and_one_for_disjoint() -> None:
    assert hellinger({"a": 0.25, "b": 0.75}, {"a": 0.25, "b": 0.75}) == pytest.approx(0, abs=1e-7)
    assert hellinger({"a": 1.0}, {"b": 1.0}) == 1.0
    assert hellinger({"a": 1.0}, {"a": 0.25, "b": 0.75}) == pytest.approx(0.5**0.5)


def test_distance_refuses_two_measures() -> None:
    one = made("a", "llm_inference", CHAT)
    with pytest.raises(ValueError, match="expected one measure, got launches and gpu_time"):
        distance(one.mix(LAUNCHES), one.mix(MixMeasure.GPU_TIME))


def test_operation_is_the_same_whoever_made_the_library() -> None:
    assert operation("volta_sgemm_#_nt", "gemm") == operation("Cijk_Alik_Bljk", "gemm") == "gemm"
    assert operation("elementwise_kernel<MulFunctor>", "elementwise") == "MulFunctor"
    assert operation("vllm::rms_norm_kernel", "moe") == "vllm::rms_norm_kernel"
    assert operation("", "reduce") == "reduce"


def test_mix_leaves_transfers_out_and_sums_to_one() -> None:
    kernels = [("Memcpy DtoH", "memcpy", 100, 5), ("a_gemm", "gemm", 3, 9), ("b", "norm", 1, 1)]
    mix = KernelMix.of(mix_rows(kernels), LAUNCHES)
    assert dict(mix.families) == {"gemm": 0.75, "norm": 0.25}
    timed = KernelMix.of(mix_rows(kernels), MixMeasure.GPU_TIME)
    assert dict(timed.families) == {"gemm": 0.9, "norm": 0.1}


def test_mix_without_times_has_no_time_shares() -> None:
    rows = mix_rows([("a_gemm", "gemm", 3, None), ("b", "norm", 1, 7)])
    assert KernelMix.of(rows, MixMeasure.GPU_TIME).families == {}
    assert KernelMix.of(rows, LAUNCHES).families["gemm"] == 0.75


def test_nearest_knows_its_own_and_says_unknown_to_strangers() -> None:
    learned = Signatures.train(three_classes())
    near = learned.nearest(made("c", "", CHAT, 1.1).mix(LAUNCHES))
    assert (near.application, near.runner_up) == ("llm_inference", "image_classification")
    assert near.distance < near.threshold < near.margin
    far = learned.nearest(made("d", "", {("fft", "fft"): 1.0}).mix(LAUNCHES))
    assert (far.application, far.distance) == ("unknown", 1.0)


def test_nearest_between_two_classes_is_unknown() -> None:
    twins = [made("a", "llm_inference", CHAT), made("b", "text_encoder", CHAT, 1.001)]
    learned = replace(Signatures.train(twins), thresholds=dict.fromkeys(MixMeasure, 0.5))
    match = learned.nearest(made("c", "", CHAT).mix(LAUNCHES))
    assert (match.application, match.nearest) == ("unknown", "llm_inference")
    assert match.margin < 0.02


@pytest.mark.parametrize(
    ("distance", "margin", "said"),
    [
        (0.1, 0.3, "the nearest profile, a_run, is 0.100 away, within the threshold of 0.150"),
        (0.2, 0.3, "the nearest profile, a_run, is 0.200 away, beyond the threshold of 0.150"),
        (0.1, 0.01, "the nearest profile, a_run, is 0.100 away, and b only 0.010 farther"),
    ],
)
def test_match_says_why(distance: float, margin: float, said: str) -> None:
    assert Match("a", "a", "a_run", distance, 0.15, margin, "b").because == said


def test_calibrate_lies_between_kin_and_strangers() -> None:
    profiles = three_classes()
    kin = distance(profiles[2].mix(LAUNCHES), profiles[3].mix(LAUNCHES))
    assert kin < calibrate(profiles, LAUNCHES) < 1.0


def test_calibrate_ranks_of_one_job_are_no_kin() -> None:
    ranks = [made(f"job_rank{n}_x", "llm_inference", CHAT, 1 + n / 10) for n in range(3)]
    stranger = made("v", "image_classification", VISION)
    alone = calibrate([ranks[0], stranger], LAUNCHES)
    assert {rank.job for rank in ranks} == {"job_x"}
    assert calibrate([*ranks, stranger], LAUNCHES) == pytest.approx(alone, abs=0.03)


def test_signatures_survive_their_file(tmp_path: Path) -> None:
    learned = Signatures.train(three_classes())
    path = tmp_path / "signatures.json"
    path.write_text(learned.text(), encoding="utf-8")
    read = Signatures.load(path, Catalogue.load().classes("application"))
    assert read.text() == learned.text()
    mix = made("c", "", VISION, 1.1).mix(LAUNCHES)
    assert read.nearest(mix).distance == pytest.approx(learned.nearest(mix).distance, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "expected format 1"),
        ({"signatures": []}, "got format 1 and 0"),
        ({"thresholds": {}}, "expected signatures"),
        ({"thresholds": {"launches": float("nan"), "gpu_time": 0.1}}, "0 .. 1, got nan"),
        ({"operation_weight": -7}, "0 .. 1, got -7"),
        ({"operation_weight": 10**400}, "0 .. 1, got 1000"),
        ({"signatures": [{"name": "x", "rows": [["a", "b", -1, None]]}]}, "0 .. 1000000"),
        ({"signatures": [{"name": "x", "rows": []}]}, "expected rows"),
    ],
)
def test_signatures_broken_file_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "signatures.json"
    good = json.loads(Signatures.train(three_classes()).text())
    path.write_text(json.dumps(good | change), encoding="utf-8")
    with pytest.raises(SignatureError, match=message):
        Signatures.load(path)


@pytest.mark.parametrize("content", [b"[" * 200_000, b" " * 101, b"\xff"])
def test_signatures_nested_long_or_no_text_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(signatures, "_MOST_BYTES", 100 if len(content) == 101 else 1 << 20)
    path = tmp_path / "signatures.json"
    path.write_bytes(content)
    with pytest.raises(SignatureError, match="expected signatures, got"):
        Signatures.load(path)


def test_signatures_of_no_class_of_the_catalogue_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "signatures.json"
    path.write_text(Signatures.train(three_classes()).text(), encoding="utf-8")
    with pytest.raises(SignatureError, match="expected classes of the catalogue"):
        Signatures.load(path, {"llm_inference"})


def test_packaged_signatures_are_what_the_profiles_teach() -> None:
    Signatures.load(applications=Catalogue.load().classes("application"))
    packaged = Path(signatures.__file__).with_name("signatures.json")
    assert packaged.read_text(encoding="utf-8") == Signatures.train(all_profiles()).text()


def test_evaluate_takes_the_whole_job_out() -> None:
    ranks = [made(f"job_rank{n}", "llm_inference", CHAT, 1 + n / 10) for n in range(3)]
    profiles = [*ranks, *three_classes()[2:]]
    assert evaluate(profiles, LAUNCHES, by_job=True).nearest.trials == 2
    assert evaluate(profiles, LAUNCHES, by_job=False).nearest.trials == 5


def test_evaluate_asks_every_profile_as_a_stranger() -> None:
    found = evaluate(three_classes(), LAUNCHES)
    assert (found.nearest.hits, found.nearest.trials) == (4, 4)
    assert (found.false_accepts.hits, found.false_accepts.trials) == (0, 5)
    assert found.auroc == 1.0
    assert found.by_candidates == ((2, 1.0), (3, 1.0))


def test_evaluate_counts_a_stranger_that_is_taken_in() -> None:
    profiles = [*three_classes(), made("twin", "vision_language", VISION, 1.1)]
    found = evaluate(profiles, LAUNCHES)
    assert found.false_accepts.hits == 3  # both of the class, and its twin
    assert found.nearest.hits < found.nearest.trials
    assert found.by_candidates[0][1] < 1.0


def test_evaluate_published_profiles_are_told_apart_by_launches() -> None:
    found = evaluate(Signatures.load().known, LAUNCHES)
    assert (found.nearest.hits, found.nearest.trials) == (8, 8)
    assert (found.false_accepts.hits, found.false_accepts.trials) == (0, 14)


def test_variants_change_the_profile_and_repeat_with_their_seed() -> None:
    one = made("a", "llm_inference", CHAT)
    for vary in (resampled(500, 7), jittered(0.3, 7)):
        assert vary(one) == vary(one) != one
    assert sum(row.launches for row in resampled(500, 7)(one).rows) == 500


def test_auroc_counts_pairs() -> None:
    assert auroc([1, 2], [2, 3]) == 0.875
    assert auroc([], [1]) is None


def test_wilson_interval_known_values() -> None:
    assert wilson_interval(0, 14)[0] == 0.0
    assert wilson_interval(0, 14)[1] == pytest.approx(0.2153, abs=1e-4)
    assert wilson_interval(8, 8)[0] == pytest.approx(0.6756, abs=1e-4)
    assert wilson_interval(8, 8)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson_interval(3, 2)


def test_mix_row_order_does_not_matter() -> None:
    rows = [MixRow("a", "gemm", 1.0, None), MixRow("b", "norm", 2.0, None)]
    assert KernelMix.of(rows, LAUNCHES) == KernelMix.of(rows[::-1], LAUNCHES)
    assert made("s", "x", SORTING).mix(LAUNCHES).operations["DeviceScanKernel"] == 0.9
