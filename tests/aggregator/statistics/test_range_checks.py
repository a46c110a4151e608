"""Which sums honest hosts can have: what is suppressed, what passes, and that honest windows do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.leader.chains import PeriodSums
from aggregator.protocol.released import Capacity
from aggregator.statistics.range_checks import FALSE_SUPPRESSION, SumRanges, SumRules
from aggregator.statistics.statistics import reserved_cells
from tests.aggregator.releases.release_kit import (
    CATALOGUE,
    GPUS,
    capacity,
    make_task,
    noise,
    true_steps,
    window,
)
from wire.rejection import ReportRejected

N = 12_000
H100 = 2
TASK = make_task()
PLACES = TASK.slices()
WALL_MS = N * GPUS * 60_000.0
IDLE = {
    ("kernel_mix", "idle"): WALL_MS,
    ("kernel_mix_by_model", "H100/idle"): WALL_MS,
}
"""Every GPU's wall time is somewhere in each partition."""


def possible(n: int = N, gpus: Capacity | None = None) -> SumRanges:
    return SumRules(CATALOGUE).of(TASK, n, gpus or capacity(n))


def word(section: str, cell: str) -> int:
    return int(PLACES[section].start) + CATALOGUE.section(section).index(cell)


def refused(vector: NDArray[np.int64], sums: SumRanges | None = None) -> str:
    """Why a vector is not released, "" when it is."""
    try:
        (sums or possible()).check(vector)
    except ReportRejected as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(
    "amounts",
    [
        IDLE,
        {
            ("kernel_mix", "gpu_time/gemm"): WALL_MS,
            ("kernel_mix_by_model", "H100/gpu_time/gemm"): WALL_MS,
            ("kernel_duration", "2^3..2^4 ns"): WALL_MS,
            ("host_network", "receive"): N * 1_000_000,
            ("host_network", "transmit"): N * 1_000_000,
            ("incidents", "disk_io"): 64 * N,
        },
    ],
    ids=["idle", "at every bound"],
)
def test_honest_windows_at_the_ends_of_their_range_are_never_suppressed(
    amounts: dict[tuple[str, str], float],
) -> None:
    rng = np.random.default_rng(5)
    truth, sums = true_steps(TASK, N, amounts), possible()
    assert [refused(truth + noise(TASK, N, rng), sums) for _ in range(200)] == [""] * 200


def test_chance_of_a_false_suppression_is_the_stated_one() -> None:
    """By tail bounds that hold for sums of discrete Gaussians: no approximation by a normal."""
    sums = possible()
    tests = 2 * (TASK.d - 2) + 2 * len(sums.totals) + 2 * len(PLACES)
    assert tests * math.exp(-sums.tail) == pytest.approx(FALSE_SUPPRESSION)
    assert math.exp(-(sums.reach**2) / 2) == pytest.approx(math.exp(-sums.tail))


@pytest.mark.parametrize("sign", [1, -1])
def test_word_beyond_its_range_is_refused_by_section(sign: int) -> None:
    vector = true_steps(TASK, N, IDLE)
    at = word("kernel_duration", CATALOGUE.section("kernel_duration").cells[3])
    vector[at] += sign * 10**6
    assert "kernel_duration, got a word beyond" in refused(vector)


def test_words_beyond_their_ranges_together_are_refused() -> None:
    """Five deviations up here and down there: no word and no total stands out."""
    vector = true_steps(TASK, N, IDLE)
    place = PLACES["gpu_utilisation"]
    signs = np.where(np.arange(place.start, place.stop) % 2, 1, -1)
    vector[place] += (5 * signs * possible().deviation[place]).astype(np.int64)
    assert "gpu_utilisation, got words beyond their ranges together" in refused(vector)


def test_lie_spread_over_places_without_a_class_is_refused() -> None:
    """One deviation up or down each: less than the noise of any of them, and no total moves."""
    sums = possible()
    empty = np.flatnonzero(sums.high == 0)
    assert len(empty) > 1000
    lie = true_steps(TASK, N, IDLE) + noise(TASK, N, np.random.default_rng(3))
    signs = np.where(np.arange(len(empty)) % 2, 1, -1)
    lie[empty] += (signs * sums.deviation[empty]).astype(np.int64)
    assert "more than noise where nothing can be" in refused(lie)
    assert refused(lie, SumRules().of(TASK, N)) == "", "without the catalogue nobody can tell"


def test_model_that_no_host_has_is_noise() -> None:
    vector, sums = true_steps(TASK, N, IDLE), possible()
    at = word("kernel_mix_by_model", "A100/idle")
    vector[at] += int((sums.reach + 0.001) * sums.deviation[at]) + 1
    assert "kernel_mix_by_model, got a word beyond" in refused(vector)
    mixed = Capacity.of([((H100, GPUS),)] * N + [((H100 - 1, 2),)])
    assert refused(vector, possible(N, mixed)) == "", "one host of it may do that"


def test_gpus_enrolled_before_their_model_had_a_class_may_report_it() -> None:
    vector = true_steps(TASK, N, IDLE)
    other = CATALOGUE.classes("gpu_model").index("other")
    assert refused(vector, possible(N, capacity(N, other))) == ""
    assert "kernel_mix_by_model" in refused(vector, possible(N, capacity(N, H100 + 1)))


def test_total_of_a_partition_is_the_wall_time_of_the_roster() -> None:
    vector = true_steps(TASK, N, IDLE)
    half = vector.copy()
    half[PLACES["kernel_mix"]] //= 2
    assert "kernel_mix, got a total beyond" in refused(half)
    # A host above the section's bound is scaled down: then the roster says too much.
    larger = replace(capacity(N), largest=GPUS + 1)
    assert refused(half, possible(N, larger)) == ""
    assert refused(half, SumRules(CATALOGUE).of(TASK, N)) == ""


def test_total_of_a_section_is_bounded_where_each_word_is_possible() -> None:
    vector = true_steps(TASK, N, IDLE)
    vector[PLACES["gpu_utilisation"]] += N * 48 // 4
    assert "gpu_utilisation, got a total beyond" in refused(vector)


def test_sums_under_another_catalogue_are_held_to_the_task_alone() -> None:
    other = replace(TASK, catalogue_hash=bytes(32))
    vector = true_steps(TASK, N, IDLE)
    section = CATALOGUE.section("incidents")
    at = word("incidents", section.cells[max(reserved_cells(section))])
    vector[at] += int(20 * possible().deviation[at])
    assert "incidents" in refused(vector)
    assert refused(vector, SumRules(CATALOGUE).of(other, N, capacity(N))) == ""


def test_sum_of_equal_windows_is_held_to_theirs() -> None:
    windows = 60
    rng = np.random.default_rng(7)
    hour = sum(true_steps(TASK, N, IDLE) + noise(TASK, N, rng) for _ in range(windows))
    gpus = capacity(N)
    long = replace(gpus, gpus_by_model={H100: gpus.gpus * windows})
    assert refused(np.asarray(hour), possible(N * windows, long)) == ""


def test_most_that_one_word_can_hide_is_the_documented_room() -> None:
    sums, vector = possible(), true_steps(TASK, N, IDLE)
    at = word("kernel_duration", CATALOGUE.section("kernel_duration").cells[0])
    room = int(sums.high[at] + sums.reach * sums.deviation[at])
    vector[at] = room
    assert refused(vector) == ""
    vector[at] = room + 2
    assert refused(vector) != ""


def test_honest_windows_are_never_suppressed_over_hours() -> None:
    rng, periods = np.random.default_rng(11), PeriodSums(SumRules(CATALOGUE))
    truth = true_steps(TASK, N, IDLE)
    for minute in range(150):
        periods.add(window(TASK, truth + noise(TASK, N, rng), N, start=60 * minute))


def test_period_begins_anew_with_another_version_and_after_a_refusal() -> None:
    periods = PeriodSums(SumRules(CATALOGUE))
    truth, sums = true_steps(TASK, N, IDLE), possible()
    at = word("gpu_utilisation", CATALOGUE.section("gpu_utilisation").cells[0])
    truth[at] -= int(0.9 * sums.reach * sums.deviation[at])
    first = window(TASK, truth, N)
    periods.add(first)
    periods.add(replace(first, task_id=bytes([1]) * 32))
    with pytest.raises(ReportRejected, match="over windows of 3600 s"):
        periods.add(replace(first, task_id=bytes([1]) * 32))
    periods.add(replace(first, task_id=bytes([1]) * 32))
    periods.add(replace(first, cohort=1))
    periods.add(replace(first, window_start_s=604_800, task_id=bytes([1]) * 32))
