"""Tasks over the shipped catalogue, and their rows by cell: what tests of windows start from."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from wire.catalogue import Catalogue
from wire.fields import Scheme
from wire.task import SectionSpec, Task

CATALOGUE = Catalogue.load()
SECOND = 10**9
START = 1_700_000_000 // 604_800 * 604_800
OFFSET = START * SECOND - 50 * SECOND
MINUTE_SECTIONS = (
    "kernel_mix", "kernel_mix_by_model", "application_mix", "kernel_duration", "copy_size",
    "gpu_utilisation", "host_cpu",
)  # fmt: skip


def task_of(names: Iterable[str], window_s: int = 60, rate: int = 1_000_000) -> Task:
    specs = []
    for name in names:
        s = CATALOGUE.section(name)
        a, bound, q = s.resolve(8, window_s)
        share = rate if s.kind in ("mix", "histogram") else 1_000_000
        specs.append(SectionSpec(s.id, name, s.kind, s.length, a, bound, s.m, q, 1, share, 4_096))
    return Task(
        series="t", version=1, domain="fleet", scheme=Scheme.MASKED, first_window=0,
        last_window=window_s * 10**6, window_s=window_s, lateness_s=30, retention_s=21_600,
        sections=tuple(specs), epsilon_millionths=2_000_000, delta_1e12=1_000,
        mu_1e9=351_549_815, n_max=100, n_min=80, t=10, min_operators=3, leader_pk=bytes(32),
        helper_pk=bytes(32), catalogue_hash=CATALOGUE.hash, expiry=10**10,
    )  # fmt: skip


def cells(task: Task, row: NDArray[np.int64], name: str) -> dict[str, int]:
    place = task.slices()[name]
    part = row[place.start - 2 : place.stop - 2]
    names = CATALOGUE.section(name).cells
    return {names[i]: int(part[i]) for i in np.flatnonzero(part)}
