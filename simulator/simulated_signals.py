"""Signals of simulated hosts that no trace carries: GPU gauges, host means, rare events.

Their levels are chosen, not measured; what is published is cited. Kernel and application mixes come
from real traces (`workloads.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from wire.catalogue import Section

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

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
