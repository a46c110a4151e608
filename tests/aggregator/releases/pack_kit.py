"""Windows of a small task of every kind, with their noise, for tests of packs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aggregator.enrolment.tasks import TaskPlan, build_task
from aggregator.protocol.released import ReleasedWindow, SuppressedWindow
from tests.aggregator.releases.release_kit import CATALOGUE, GPUS, noise, true_steps, window

HOSTS = 12_000
TASK = build_task(
    CATALOGUE,
    TaskPlan(
        series="minutes",
        domain="demo",
        window_s=60,
        first_window=0,
        last_window=60 * 20_000,
        retention_s=6 * 3600,
        weights={
            "application_mix": 400_000,
            "kernel_duration": 200_000,
            "host_network": 100_000,
            "incidents": 100_000,
        },
        gpus_per_host=GPUS,
        n_max=HOSTS,
        n_min=HOSTS * 8 // 10,
        leader_pk=bytes(32),
        helper_pk=bytes([1]) * 32,
        expiry=2_000_000_000,
    ),
)


def noisy(seed: int, start: int, cohort: int = 0) -> ReleasedWindow:
    n = HOSTS - seed
    busy = {("application_mix", "llm_training"): 0.5 * HOSTS * GPUS * 60_000}
    added = noise(TASK, n, np.random.default_rng(seed))
    added[:2] = 0
    made = window(TASK, true_steps(TASK, n, busy) + added, n, start, cohort)
    return replace(made, rejections={"late": seed})


def suppressed(start: int) -> SuppressedWindow:
    return SuppressedWindow(TASK.series, 0, start, 60, 1, "too_few_hosts", 7, 10_000, start + 99.0)
