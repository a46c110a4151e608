"""What simulated hosts measure: kernels by recorded tables, and signals that no trace carries.

Where the kernels of an application land in each section, on each GPU model, comes from real traces
(`simulator/workloads.py`). The levels of GPU gauges and host means are chosen, not measured; what
is published is cited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.window_state import COPY_FAMILIES
from simulator.applications import Application, Variant, derive
from simulator.workloads import KernelRow, Workload
from wire.catalogue import Catalogue, Section

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_PROBABILITY: Final = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)

Rows = NDArray[np.int64]

_MILLION = 1_000_000

# (at an idle host, at a fully busy one, spread), in the unit of the section's bins.
_GAUGES: Final = {
    "gpu_utilisation": (1.0, 97.0, 6.0),
    "gpu_memory": (3.0, 80.0, 8.0),
    "gpu_power": (75.0, 620.0, 40.0),
    "gpu_temperature": (33.0, 68.0, 4.0),
}

# Share of full scale: (idle, fully busy).
_MEANS: Final = {
    "user": (0.02, 0.35),
    "system": (0.01, 0.06),
    "iowait": (0.001, 0.01),
    "interrupt": (0.001, 0.006),
    "steal": (0.0, 0.001),
    "used": (0.08, 0.45),
    "cached": (0.15, 0.30),
    "busy": (0.01, 0.20),
    "read": (0.001, 0.05),
    "write": (0.001, 0.02),
    "receive": (0.0005, 0.08),
    "transmit": (0.0005, 0.08),
    "host_to_device": (0.0, 0.03),
    "device_to_host": (0.0, 0.01),
    "device_to_device": (0.0, 0.02),
    "all_reduce": (0.0, 0.05),
    "all_gather": (0.0, 0.02),
    "reduce_scatter": (0.0, 0.02),
    "point_to_point": (0.0, 0.01),
    "time_in_calls": (0.0, 0.04),
    "device": (0.0, 0.05),
    "stream": (0.0, 0.15),
    "event": (0.0, 0.05),
}


@dataclass(frozen=True, slots=True)
class Landing:
    """How a ms of each kernel spreads over the cells of one section that it reaches at all.

    cells   int64[c], places in the section
    shares  float[kernels, c]
    """

    cells: Places
    shares: Floats


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One application on one GPU model, ready to draw from.

    busy        share of a step in which the GPU works
    shares      float[kernels], of the busy time
    exchange    place of the kernel that waits for other hosts, -1 where there is none
    family      cells are places in the catalogue's table of families
    duration, copy_size     cells are bins; None where the catalogue has no such section
    """

    busy: float
    shares: Floats
    exchange: int
    family: Landing
    duration: Landing | None
    copy_size: Landing | None


class KernelTables:
    """Makes and keeps the tables of every application met on every GPU model."""

    def __init__(self, catalogue: Catalogue, applications: tuple[Application, ...]) -> None:
        self._applications = applications
        self._models = catalogue.classes("gpu_model")
        self._families = catalogue.classes("family")
        sections = {section.name: section for section in catalogue.sections}
        self._duration = sections.get("kernel_duration")
        self._copy_size = sections.get("copy_size")
        self._known: dict[tuple[int, int], KernelTable] = {}

    def get(self, application: int, model: int) -> KernelTable:
        """Give the table of an application on a GPU model (places in their tables).

        On another model than the recorded one it is a variant by rule.
        """
        known = self._known.get((application, model))
        if known is None:
            known = self._make(self._applications[application].workload, self._models[model])
            self._known[application, model] = known
        return known

    def _make(self, workload: Workload, model: str) -> KernelTable:
        moved = derive(workload, Variant(gpu_model=model), workload.name, workload.application)
        rows = moved.kernels
        times = np.array([row.time_ns_per_step for row in rows], dtype=np.float64)
        families = np.zeros((len(rows), len(self._families)))
        for place, row in enumerate(rows):
            families[place, self._families.index(row.family)] = 1.0
        exchanges = [i for i, row in enumerate(rows) if row.family == "communication"]
        return KernelTable(
            busy=moved.busy_millionths / 1e6,
            shares=times / times.sum(),
            exchange=max(exchanges, key=lambda i: times[i], default=-1),
            family=_compact(families),
            duration=self._binned(self._duration, rows, _duration_shares),
            copy_size=self._binned(self._copy_size, rows, _copy_shares),
        )

    @staticmethod
    def _binned(
        section: Section | None,
        rows: tuple[KernelRow, ...],
        spread: Callable[[Section, KernelRow], Floats],
    ) -> Landing | None:
        if section is None:
            return None
        return _compact(np.array([spread(section, row) for row in rows]))


def _compact(shares: Floats) -> Landing:
    cells = np.flatnonzero(shares.any(axis=0))
    return Landing(cells, np.ascontiguousarray(shares[:, cells]))


def _duration_shares(section: Section, kernel: KernelRow) -> Floats:
    """Spread a kernel's time over duration bins: its quantiles are joined by straight lines."""
    shares = np.zeros(section.length)
    if section.bins is None or kernel.family in COPY_FAMILIES:
        return shares
    p10, p50, p90, p99 = kernel.duration_ns
    ranks = (np.arange(200) + 0.5) / 200
    lengths = np.interp(ranks, _PROBABILITY, (p10, p10, p50, p90, p99, p99))
    places = np.searchsorted(section.bins.edges, lengths, side="right") - 1
    np.add.at(shares, np.clip(places, 0, section.bins.count - 1), lengths + 1.0)
    return np.asarray(shares / shares.sum())


def _copy_shares(section: Section, kernel: KernelRow) -> Floats:
    shares = np.zeros(section.length)
    if section.bins is not None and kernel.copy_bytes:
        shares[section.bins.index(kernel.copy_bytes)] = 1.0
    return shares


def draw_samples(section: Section, load: Floats, samples: Rows, rng: np.random.Generator) -> Rows:
    """Draw int64[hosts, bins]: each host's samples around its level, with the gauge's spread.

    Counts are the gauge's distribution times the samples, rounded by one uniform per host: right in
    the mean, samples in all, and cheap where a fleet is drawn every window.
    """
    if section.bins is None or section.name not in _GAUGES:
        return np.zeros((len(load), section.length), dtype=np.int64)
    idle, busy, spread = _GAUGES[section.name]
    level = (idle + (busy - idle) * load).astype(np.float32)
    uppers = np.array(section.bins.edges[1:], dtype=np.float32)
    # The logistic curve stands in for the normal distribution: within 1 % of it at this scale.
    below = np.exp(np.clip((uppers - level[:, None]) * np.float32(-1.702 / spread), -60, 60))
    below += 1
    reached = np.empty((len(load), section.length))
    np.divide(samples[:, None], below, out=reached[:, :-1])
    reached[:, :-1] += rng.random((len(load), 1))
    reached[:, -1] = samples  # below is under 1 up to here, and so is the uniform: never more
    drawn = np.minimum(reached, samples[:, None]).astype(np.int64)
    drawn[:, 1:] -= drawn[:, :-1].copy()
    return drawn


def draw_means(section: Section, load: Floats, rng: np.random.Generator) -> Rows:
    """Draw int64[hosts, coordinates] in millionths of full scale, with 30 % variation."""
    ends = np.array([_MEANS.get(cell, (0.0, 0.0)) for cell in section.cells])
    level = ends[:, 0] + (ends[:, 1] - ends[:, 0]) * load[:, None]
    jitter = np.exp(rng.normal(0.0, 0.3, level.shape))
    shares = np.minimum(level * jitter * _MILLION, _MILLION)
    # Parts of one whole (CPU time, memory) never exceed it.
    above = shares.sum(axis=1, keepdims=True) / section.l1_bound
    means: Rows = (shares / np.maximum(above, 1.0)).astype(np.int64)
    return means
