"""Sizes and durations of jobs against the published figures they are made from."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.jobs import JobQueue, durations, job_sizes, make_groups, published
from simulator.scenario import Jobs, load
from tests.shared_data import shared_data
from tests.window_kit import CATALOGUE

CLUSTERS = tuple(published()["cluster"])
COUNT = 40_000
KS_BOUND = 1.63 / np.sqrt(COUNT)
"""Kolmogorov and Smirnov's 1 % point for so many draws."""


def ks_distance(sample: np.ndarray, places: list[tuple[float, float]]) -> float:
    """Largest distance from the published distribution at the points where it is published."""
    return max(abs(float((sample <= at).mean()) - share) for share, at in places)


def test_durations_keep_alibabas_quantiles() -> None:
    sample = durations("alibaba_2023").sample(COUNT, np.random.default_rng(1))
    quantiles = published()["quantiles"]["alibaba_2023"]["duration_s"]
    assert len(quantiles) == 3
    assert ks_distance(sample, quantiles) < KS_BOUND
    assert ks_distance(2 * sample, quantiles) > 5 * KS_BOUND


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_durations_keep_a_clusters_median_and_mean(cluster: str) -> None:
    figures = published()["cluster"][cluster]["duration_s"]
    law = durations(cluster)
    sample = law.sample(COUNT, np.random.default_rng(2))
    assert ks_distance(sample, [(0.5, figures["median"]), (1.0, figures["longest"])]) < KS_BOUND
    assert law.seconds.mean() == pytest.approx(figures["mean"], rel=1e-3)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_job_sizes_keep_a_clusters_median_and_mean(cluster: str) -> None:
    figures = published()["cluster"][cluster]["gpus"]
    law = job_sizes(cluster)
    sample = np.random.default_rng(3).choice(law.sizes, size=COUNT, p=law.chances)
    # The median is the smallest size, so at least half of the jobs are of it.
    assert (sample <= figures["median"]).mean() > 0.5 - KS_BOUND
    assert sample.max() <= figures["largest"]
    assert law.sizes @ law.chances == pytest.approx(figures["mean"], rel=1e-6)
    share = law.chances.cumsum()
    assert ks_distance(sample, list(zip(share, law.sizes, strict=True))) < KS_BOUND


def test_published_figures_are_those_of_the_cluster_table() -> None:
    path = shared_data("cluster/acme_cluster_summary.csv")
    with path.open(encoding="utf-8") as file:
        rows = {row["id"].lower(): row for row in csv.DictReader(file)}
    assert set(rows) == set(CLUSTERS)
    for name, figures in published()["cluster"].items():
        row = rows[name]
        assert figures["jobs"] == int(row["gpu_job_num"])
        assert figures["gpus"] == {
            "median": float(row["med_gpu_num"]),
            "mean": float(row["avg_gpu_num"]),
            "largest": float(row["max_gpu"]),
        }
        assert figures["duration_s"] == {
            "median": float(row["med_run_time_gpu"]),
            "mean": float(row["avg_run_time_gpu"]),
            "longest": float(row["max_run_time_gpu"]),
        }


def test_job_queue_keeps_sizes_and_durations_when_siblings_count_each() -> None:
    scenario = load("steady")
    queue = JobQueue(scenario, make_groups(scenario, CATALOGUE), 8, 4096)
    batch = queue.draw(COUNT, 0.0, np.random.default_rng(4))
    law = job_sizes(scenario.jobs.sizes)
    whole = batch.jobs.sum()
    for size, chance in zip(law.sizes, law.chances, strict=True):
        share = batch.jobs[batch.size == size].sum() / whole
        assert share == pytest.approx(chance, abs=4 * np.sqrt(chance / COUNT) + 0.005)
    assert (batch.gpus >= batch.size).all()
    assert (batch.gpus[batch.size < 8] <= 8).all()
    quantiles = published()["quantiles"]["alibaba_2023"]["duration_s"]
    assert ks_distance(batch.seconds, quantiles) < KS_BOUND


def test_fleets_started_jobs_have_the_published_sizes_and_durations() -> None:
    """What waits for room, and what is started to fill the load, must not prefer any job."""
    jobs = Jobs(sizes="seren", durations="alibaba_2023", largest_gpus=1024)
    scenario = load("steady").with_(hosts=5_000, operators=(1.0,), jobs=jobs, step_s=600)
    model = FleetModel(scenario, CATALOGUE)
    model.advance(scenario.start_s + 86_400)
    batches = model.started
    count = np.concatenate([batch.jobs for batch in batches])
    size = np.repeat(np.concatenate([batch.size for batch in batches]), count)
    placements = len(count)
    assert placements > 5_000
    law = job_sizes("seren")
    bound = 1.63 / np.sqrt(placements)
    # Siblings are one draw of several jobs, so that the bound is that of the placements.
    assert ks_distance(size, list(zip(law.chances.cumsum(), law.sizes, strict=True))) < bound
    seconds = np.concatenate([batch.seconds for batch in batches])
    quantiles = published()["quantiles"]["alibaba_2023"]["duration_s"]
    assert ks_distance(seconds, quantiles) < bound


def test_jobs_met_at_the_start_are_the_longer_ones() -> None:
    law = durations("alibaba_2023")
    met = law.sample_rest(COUNT, np.random.default_rng(5))
    # A job met at random is longer in the mean by E[t^2] / E[t], and half of it is left.
    expected = float((law.seconds**2).mean() / law.seconds.mean() / 2)
    assert met.mean() == pytest.approx(expected, rel=0.05)
    assert met.mean() > 5 * law.seconds.mean()
