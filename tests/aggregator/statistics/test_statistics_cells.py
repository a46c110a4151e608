"""Cells of a released vector: values, errors, intervals, shares and what is suppressed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from aggregator.protocol.released import Capacity, CoarseCounts
from aggregator.statistics.ratios import coverage, expected_by_chance
from aggregator.statistics.statistics import Cell, estimate, released_units
from tests.aggregator.releases.release_kit import CATALOGUE, capacity, make_task, noise, true_steps
from tests.running_sum import RunningSum

N = 12_000
WALL_MS = N * 8 * 60_000.0
TASK = make_task()
GEMM = ("kernel_mix", "gpu_time/gemm")
CONV = ("kernel_mix", "gpu_time/conv")
IDLE = ("kernel_mix", "idle")
UNMEASURED = ("kernel_mix", "unmeasured")


def by_name(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.section, cell.cell): cell for cell in cells}


def cells_of(amounts: dict[tuple[str, str], float], n: int = N) -> dict[tuple[str, str], Cell]:
    counts = CoarseCounts.of(TASK, n, capacity(n))
    return by_name(estimate(TASK, CATALOGUE, true_steps(TASK, n, amounts), counts))


def test_values_are_in_readable_units() -> None:
    cells = cells_of(
        {
            GEMM: WALL_MS / 2,
            ("gpu_utilisation", "95.. percent"): 5000,
            ("host_network", "receive"): N * 250_000,
            ("incidents", "disk_io"): 64 * 300,
        }
    )
    gemm = cells[GEMM]
    assert gemm.unit == "GPU-s"
    assert gemm.value == pytest.approx(WALL_MS / 2000)
    busy = cells["gpu_utilisation", "95.. percent"]
    assert busy.unit == "samples"
    assert busy.value == pytest.approx(5000, rel=1e-3)
    receive = cells["host_network", "receive"]
    assert receive.unit == "bytes/s"
    assert receive.value / N == pytest.approx(0.25 * 50e9, rel=1e-4)
    assert receive.share == pytest.approx(0.25, rel=1e-4)
    disk = cells["incidents", "disk_io"]
    assert disk.unit == "hosts"
    assert disk.value == pytest.approx(300)
    assert disk.share == pytest.approx(300 / N)


def test_standard_error_is_the_known_noise_of_the_accepted_hosts() -> None:
    spec = TASK.sections[0]
    sigma = spec.sigma_1024 / 1024
    for n in (9_000, 12_500):
        cell = cells_of({}, n)[GEMM]
        steps = cell.standard_error / (spec.q / 1000)
        # As many hosts as there can have been: half a step of the grid more.
        assert steps == pytest.approx(math.sqrt((n + 50) * (sigma**2 + 0.25)))
        assert cell.high - cell.low == pytest.approx(2 * 1.959964 * cell.standard_error)


def test_indicators_are_never_rounded_so_their_error_is_noise_alone() -> None:
    spec = next(spec for spec in TASK.sections if spec.name == "incidents")
    error = cells_of({})["incidents", "disk_io"].standard_error
    assert error == pytest.approx(spec.sigma_1024 / 1024 * math.sqrt(N + 50) / 64)


def test_share_divides_by_measured_wall_time() -> None:
    cells = cells_of({GEMM: 0.3 * WALL_MS, IDLE: 0.1 * WALL_MS, UNMEASURED: 0.5 * WALL_MS})
    assert cells[GEMM].share == pytest.approx(0.6, rel=1e-3)
    assert cells[IDLE].share == pytest.approx(0.2, rel=1e-3)
    assert cells[UNMEASURED].share == pytest.approx(0.5, rel=1e-3)


def test_unmeasured_share_divides_by_wall_time_of_a_coarse_number_of_hosts() -> None:
    cell = cells_of({UNMEASURED: 0.5 * WALL_MS})[UNMEASURED]
    assert cell.share_high is not None
    assert cell.share is not None
    # Half a step of 100 hosts, and 1/20,000 for their rounded GPUs each.
    fewest = WALL_MS / 1000 * (1 - 50 / N - 1 / 20_000)
    assert cell.share_high == pytest.approx(cell.high / fewest, rel=1e-4)


def test_sampling_widens_the_interval_of_a_share_but_not_of_the_sum() -> None:
    all_measured = cells_of({GEMM: 0.5 * WALL_MS})[GEMM]
    sampled = cells_of({GEMM: 0.05 * WALL_MS, UNMEASURED: 0.9 * WALL_MS})[GEMM]
    assert sampled.standard_error == all_measured.standard_error
    assert sampled.share == pytest.approx(0.5, rel=1e-2)
    # A tenth of the hosts measured: at worst each did only one thing, a binomial of N/10.
    worst = math.sqrt(0.9 * 0.25 / (0.1 * N))
    noise_only = 10 * all_measured.standard_error / (WALL_MS / 1000)
    coarse = 10 * (50 / N + 1 / 20_000) * 0.5
    assert sampled.share_high is not None
    assert sampled.share is not None
    got = (sampled.share_high - sampled.share - coarse) / 1.96
    assert got == pytest.approx(math.hypot(worst, noise_only * math.hypot(1, 0.5)), rel=0.1)


def test_share_of_noise_is_suppressed() -> None:
    cells = cells_of({GEMM: 0.001 * WALL_MS, UNMEASURED: 0.9995 * WALL_MS})
    assert cells[GEMM].share is None
    assert cells[GEMM].share_low is None
    assert cells[GEMM].share_high is None
    assert cells["kernel_duration", "2^0..2^1 ns"].share is None


def test_cell_below_two_standard_errors_is_marked() -> None:
    error = cells_of({})[GEMM].standard_error * 1000
    assert cells_of({GEMM: 1.9 * error})[GEMM].below_noise
    assert not cells_of({GEMM: 2.1 * error})[GEMM].below_noise
    assert cells_of({GEMM: -5 * error})[GEMM].below_noise


def test_shares_by_model_divide_by_that_models_wall_time() -> None:
    section = "kernel_mix_by_model"
    mixed = Capacity.of([((2, 8),)] * (N // 2) + [((1, 8),)] * (N // 2))
    amounts = {
        (section, "H100/gpu_time/gemm"): 0.25 * WALL_MS,
        (section, "A100/gpu_time/gemm"): 0.1 * WALL_MS,
    }
    counts = CoarseCounts.of(TASK, N, mixed)
    cells = by_name(estimate(TASK, CATALOGUE, true_steps(TASK, N, amounts), counts))
    assert cells[section, "H100/gpu_time/gemm"].share == pytest.approx(0.5, rel=2e-3)
    assert cells[section, "A100/gpu_time/gemm"].share == pytest.approx(0.2, rel=2e-3)
    assert cells[section, "V100/gpu_time/gemm"].share is None


def test_without_capacity_a_mix_divides_by_what_was_measured() -> None:
    vector = true_steps(TASK, N, {GEMM: 0.6 * WALL_MS, CONV: 0.2 * WALL_MS})
    cells = by_name(estimate(TASK, CATALOGUE, vector, CoarseCounts.of(TASK, N)))
    assert cells[GEMM].share == pytest.approx(0.75, rel=1e-3)
    assert cells[UNMEASURED].share is None


def test_gpu_time_and_launch_share_are_cells_of_their_own() -> None:
    both = {GEMM: 0.4 * WALL_MS, ("kernel_mix", "launch_share/gemm"): 0.3 * WALL_MS}
    cells = cells_of(both)
    assert cells[GEMM].value == pytest.approx(0.4 * WALL_MS / 1000)
    assert cells["kernel_mix", "launch_share/gemm"].value == pytest.approx(0.3 * WALL_MS / 1000)
    assert not any(name in {"gemm", "H100/gemm"} for _, name in cells)


def test_places_kept_for_later_classes_are_left_out() -> None:
    assert not [name for _, name in cells_of({}) if "reserved" in name]


def test_estimate_refuses_a_vector_that_is_not_the_tasks() -> None:
    vector = true_steps(TASK, N, {})
    with pytest.raises(ValueError, match="words"):
        estimate(TASK, CATALOGUE, vector[:-1], CoarseCounts.of(TASK, N))
    with pytest.raises(ValueError, match="check words"):
        estimate(TASK, CATALOGUE, vector, CoarseCounts.of(TASK, N - 100))


def test_intervals_of_noisy_releases_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(20261121)
    amounts = {GEMM: 0.5 * WALL_MS, CONV: 0.1 * WALL_MS, UNMEASURED: 0.2 * WALL_MS}
    truth = true_steps(TASK, N, amounts)
    counts = CoarseCounts.of(TASK, N, capacity(N))
    known = by_name(estimate(TASK, CATALOGUE, truth, counts))
    hits = share_hits = trials = shares = 0
    for _ in range(12):
        noisy = by_name(estimate(TASK, CATALOGUE, truth + noise(TASK, N, rng), counts))
        for key, cell in noisy.items():
            trials += 1
            hits += cell.low <= known[key].value <= cell.high
            if key[0] == "kernel_mix" and cell.share_low is not None:
                want = known[key].share
                assert want is not None
                assert cell.share_high is not None
                shares += 1
                share_hits += cell.share_low <= want <= cell.share_high
    assert coverage(hits, trials).consistent_with(0.95)
    # Bounds on rounding and sampling make intervals of shares a little too wide, never too narrow.
    assert coverage(share_hits, shares).high >= 0.95
    assert shares > 500


def test_empty_cells_pass_two_standard_errors_as_often_as_expected() -> None:
    rng = np.random.default_rng(3)
    passed = cells = 0
    for _ in range(10):
        vector = true_steps(TASK, N, {}) + noise(TASK, N, rng)
        found = estimate(TASK, CATALOGUE, vector, CoarseCounts.of(TASK, N))
        passed += sum(not cell.below_noise for cell in found)
        cells += len(found)
    assert abs(passed - expected_by_chance(cells)) < 4 * math.sqrt(expected_by_chance(cells))


def test_running_sum_shrinks_the_relative_error_by_the_root_of_the_windows() -> None:
    running = RunningSum(TASK, CATALOGUE)
    vector = true_steps(TASK, N, {GEMM: 0.5 * WALL_MS})
    for _ in range(16):
        running.add(vector, N, capacity(N))
    mean, single = by_name(running.estimate())[GEMM], cells_of({GEMM: 0.5 * WALL_MS})[GEMM]
    assert running.windows == 16
    assert mean.value == pytest.approx(16 * single.value)
    assert mean.standard_error == pytest.approx(4 * single.standard_error, rel=3e-3)
    assert mean.share == pytest.approx(single.share)
    # What the denominator may be off by is the same part of all windows.
    of_noise = [
        cell.share_high * (1 - cell.whole_bound / cell.whole) - cell.share
        for cell in (mean, single)
        if cell.share_high is not None and cell.share is not None and cell.whole is not None
    ]
    assert of_noise[0] / of_noise[1] == pytest.approx(0.25, rel=0.01)


def test_running_sum_forgets_capacity_once_a_window_lacks_it() -> None:
    running = RunningSum(TASK, CATALOGUE)
    vector = true_steps(TASK, N, {})
    running.add(vector, N, capacity(N))
    assert running.counts == CoarseCounts.of(TASK, N, capacity(N))
    running.add(vector, N)
    running.add(vector, N, capacity(N))
    assert running.counts is not None
    assert running.counts.capacity is None


def test_local_scheme_uses_each_hosts_own_sigma() -> None:
    louder = tuple(replace(spec, sigma_1024=spec.sigma_1024 * 90) for spec in TASK.sections)
    task = replace(TASK, sections=louder)
    cell = by_name(estimate(task, CATALOGUE, true_steps(task, N, {}), CoarseCounts.of(task, N)))[
        GEMM
    ]
    assert cell.standard_error == pytest.approx(90 * cells_of({})[GEMM].standard_error, rel=1e-3)


def test_released_units_cover_every_section_of_the_catalogue() -> None:
    for spec in TASK.sections:
        units = released_units(CATALOGUE.section(spec.name), spec)
        assert len(units) == spec.length
        assert all(per_base > 0 for _, per_base in units)


def test_capacity_counts_gpus_and_squares_by_model() -> None:
    found = Capacity.of([((1, 8),), ((1, 4), (2, 4)), ((1, 8),)])
    assert found == Capacity({1: 20, 2: 4}, {1: 8 * 8 + 4 * 4 + 8 * 8, 2: 16}, 3 * 64, 8)
    assert (found + found).gpus == 48
    assert (found + found).squares == 6 * 64


def test_histogram_share_knows_that_the_cell_is_part_of_its_whole() -> None:
    """A bin that holds nearly everything is a sure share, however noisy the sum is."""
    section = "gpu_utilisation"
    top, rest = (section, "95.. percent"), (section, "0..5 percent")
    full = N * 8 * 12.0
    cells = cells_of({top: 0.9 * full, rest: 0.1 * full})
    cell, bins = cells[top], len(CATALOGUE.section(section).cells)
    assert cell.share == pytest.approx(0.9, rel=1e-3)
    assert cell.share_high is not None
    difference = abs(cell.value - cell.share_high * full)
    variance = 1 - 2 * cell.share_high + bins * cell.share_high**2
    expected = 1.959964 * cell.standard_error * math.sqrt(variance)
    assert difference == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("few", [21, 22, 99])
def test_large_hosts_of_a_model_of_few_are_told_by_none(few: int) -> None:
    """Beside a thousand hosts of one GPU, 22 of eight have more GPUs than a hundred of those."""
    task = replace(make_task(domain="fleet"), n_min=1_000)
    hosts = [((1, 1),)] * 1_000 + [((2, 8),)] * few
    counts = CoarseCounts.of(task, len(hosts), Capacity.of(hosts))
    assert counts.capacity is not None
    assert set(counts.capacity.by_model) == {1}
