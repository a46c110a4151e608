"""A task of every kind of section, and releases of it whose true sums are known."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from aggregator.enrolment.tasks import TaskPlan, build_task
from aggregator.protocol.released import Capacity, ReleasedWindow
from wire.catalogue import Catalogue
from wire.task import Task

GPUS = 8
CATALOGUE = Catalogue.load()
WEIGHTS = {
    "kernel_mix": 400_000,
    "kernel_mix_by_model": 200_000,
    "kernel_duration": 100_000,
    "gpu_utilisation": 100_000,
    "host_network": 100_000,
    "incidents": 100_000,
}


def make_task(windows: int = 24, hosts: int = 12_500, domain: str = "demo", start: int = 0) -> Task:
    return build_task(
        CATALOGUE,
        TaskPlan(
            series="every-kind",
            domain=domain,
            window_s=60,
            first_window=start,
            last_window=start + 60 * (windows - 1),
            retention_s=6 * 3600,
            weights=WEIGHTS,
            gpus_per_host=GPUS,
            n_max=hosts,
            n_min=hosts * 8 // 10,
            leader_pk=bytes(32),
            helper_pk=bytes([1]) * 32,
            expiry=2_000_000_000,
        ),
    )


def capacity(n: int, model: int = 2) -> Capacity:
    """n hosts of 8 GPUs of one model (2: H100)."""
    return Capacity.of([((model, GPUS),)] * n)


def true_steps(task: Task, n: int, amounts: dict[tuple[str, str], float]) -> npt.NDArray[np.int64]:
    """The noiseless vector of n hosts whose readings sum to these amounts of base units."""
    vector = np.zeros(task.d, dtype=np.int64)
    vector[:2] = n
    places = task.slices()
    for (name, cell), amount in amounts.items():
        spec = next(spec for spec in task.sections if spec.name == name)
        vector[places[name].start + CATALOGUE.section(name).index(cell)] = round(amount / spec.q)
    return vector


def noise(task: Task, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """What n hosts add to a released vector, to the rounding of a step."""
    sigma = task.sigma_vector_1024() / 1024 * math.sqrt(n)
    return np.rint(rng.normal(size=task.d) * sigma).astype(np.int64)


def window(
    task: Task, vector: npt.NDArray[np.int64], n: int, start: int = 0, cohort: int = 0
) -> ReleasedWindow:
    return ReleasedWindow(
        bytes(32),
        task,
        cohort,
        start,
        n,
        vector,
        {"late": 200},
        start + 61.0,
        start + 62.5,
        capacity(n),
    )
