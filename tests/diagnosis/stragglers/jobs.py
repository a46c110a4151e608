"""Synthetic jobs: own work of ranks by stage and step, with what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diagnosis.stragglers.calls import Calls
from diagnosis.stragglers.judge import Job
from diagnosis.stragglers.trace import OperationKind


@dataclass(frozen=True)
class Made:
    """Own work, float64[ranks, steps], and the stage of each rank."""

    times: NDArray[np.float64]
    stages: NDArray[np.int32]


def made(
    seed: int,
    stages: Mapping[int, float],
    per_stage: int,
    steps: int = 40,
    noise: float = 0.02,
    machines: float = 0.01,
    slow: Mapping[int, float] | None = None,
) -> Made:
    """Make a job.

    stages     work of a stage, seconds a step
    noise      spread of a rank's work from step to step, a share
    machines   spread between ranks, a share: no two machines are alike
    slow       factor by rank
    """
    rng = np.random.default_rng(seed)
    of_rank = np.repeat(np.array(list(stages)), per_stage)
    work = np.array([stages[stage] for stage in of_rank])
    own = rng.lognormal(0, machines, len(work)) * work
    for rank, factor in (slow or {}).items():
        own[rank] *= factor
    common = rng.lognormal(0, 0.1, steps)
    return Made(
        own[:, None] * common * rng.lognormal(0, noise, (len(work), steps)),
        of_rank.astype(np.int32),
    )


def job(made: Made, **kinds: NDArray[np.float64]) -> Job:
    """Give a job without calls; `kinds` take the place of compute, data_loading, other."""
    nothing = np.zeros(0, dtype=np.int64)
    times = {
        OperationKind.COMPUTE: kinds.get("compute", made.times),
        OperationKind.DATA_LOADING: kinds.get("data_loading", 0 * made.times),
        OperationKind.OTHER: kinds.get("other", 0 * made.times),
    }
    ranks, steps = made.times.shape
    return Job(
        np.arange(ranks, dtype=np.int32), made.stages, np.arange(steps, dtype=np.int64), times,
        Calls.of(nothing, nothing, nothing, np.zeros(0), np.zeros(0)),
    )  # fmt: skip
