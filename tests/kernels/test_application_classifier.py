"""The class of a process from a stream of launches: windows, bounds, and what is unknown."""

import pytest

from kernels import signatures
from kernels.signatures import PARTS, ApplicationClassifier, Signatures
from tests.signature_kit import three_classes

WRAPPED = "void at::native::vectorized_elementwise_kernel<4, {}>(int)"
CHAT = (
    ("volta_sgemm_128x32_nt", "gemm", 60),
    ("flash_fwd_kernel", "attention", 30),
    (WRAPPED.format("silu_kernel"), "elementwise", 10),
)
VISION = (
    ("implicit_convolve_sgemm", "conv", 70),
    ("bn_fw_tr_1C11_kernel", "norm", 20),
    (WRAPPED.format("relu_kernel"), "elementwise", 10),
)


@pytest.fixture
def classifier() -> ApplicationClassifier:
    return ApplicationClassifier(Signatures.train(three_classes()))


def play(
    classifier: ApplicationClassifier,
    process: object,
    kernels: tuple[tuple[str, str, int], ...],
    rounds: int,
) -> None:
    for _ in range(rounds):
        for name, family, launches in kernels:
            classifier.observe(process, name, family, launches)
        classifier.end_round()


def test_classifier_names_each_process_by_its_own_launches(
    classifier: ApplicationClassifier,
) -> None:
    for _ in range(10):
        play(classifier, 1, CHAT, 1)
        play(classifier, 2, VISION, 1)
    assert classifier.application(1) == "llm_inference"
    assert classifier.application(2) == "image_classification"


def test_classifier_says_unknown_until_it_has_seen_enough(
    classifier: ApplicationClassifier,
) -> None:
    play(classifier, 1, CHAT, 4)
    assert (classifier.application(1), classifier.match(1)) == ("unknown", None)
    play(classifier, 1, CHAT, 1)
    assert classifier.application(1) == "llm_inference"
    assert classifier.application("never seen") == "unknown"


def test_classifier_says_unknown_to_a_stranger(classifier: ApplicationClassifier) -> None:
    classifier.observe(1, "fft_kernel", "fft", 10_000)
    assert classifier.application(1) == "unknown"


def test_classifier_window_slides_with_the_program(classifier: ApplicationClassifier) -> None:
    play(classifier, 1, CHAT, 1_000)
    assert classifier.application(1) == "llm_inference"
    play(classifier, 1, VISION, PARTS * 50 + 50)
    assert classifier.application(1) == "image_classification"


def test_classifier_of_aggregated_rows_keeps_whole_rounds() -> None:
    """One row may hold more launches than a part: the last rows must not be the window."""
    classifier = ApplicationClassifier(Signatures.train(three_classes()))
    for _ in range(2):
        for name, family, launches in (*CHAT, *(("Memcpy HtoD", "memcpy", 60),) * PARTS):
            classifier.observe(1, name, family, launches * 100)
        classifier.end_round()
    assert classifier.application(1) == "llm_inference"
    assert len(classifier._processes[1].parts) == 3


def test_classifier_rounds_still_slide() -> None:
    classifier = ApplicationClassifier(Signatures.train(three_classes()))
    for kernels in (CHAT, *(VISION,) * (PARTS + 1)):
        play(classifier, 1, kernels, 100)
        classifier.end_round()
    assert classifier.application(1) == "image_classification"
    assert len(classifier._processes[1].parts) == PARTS


def test_classifier_copies_alone_are_unknown(classifier: ApplicationClassifier) -> None:
    classifier.observe(1, "Memcpy HtoD", "memcpy", 10_000)
    assert classifier.application(1) == "unknown"


def test_classifier_memory_is_bounded(
    classifier: ApplicationClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "_MOST_PROCESSES", 3)
    monkeypatch.setattr(signatures, "_MOST_OPERATIONS", 5)
    for process in range(10):
        for kernel in range(100):
            classifier.observe(process, f"k{'abcdefghij'[kernel % 10]}{kernel}x", "norm", 10)
            classifier.observe(process, f"{'abcdefghij'[kernel % 10]}_user", "reduce", 10)
    assert list(classifier._processes) == [7, 8, 9]
    kept = classifier._processes[9].parts[0]
    assert len(kept) <= 5 + 2  # the families that take what does not fit
    assert sum(kept.values()) == 2_000


def test_classifier_forgets_a_process_that_ended(classifier: ApplicationClassifier) -> None:
    play(classifier, 1, CHAT, 10)
    classifier.forget(1)
    classifier.forget("never seen")
    assert classifier.application(1) == "unknown"


def test_classifier_refuses_negative_launches(classifier: ApplicationClassifier) -> None:
    with pytest.raises(ValueError, match="at least 0, got -1"):
        classifier.observe(1, "a", "gemm", -1)
