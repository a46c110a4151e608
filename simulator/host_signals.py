"""Signals of simulated hosts that no trace carries: GPU gauges, host means, rare events.

Their levels are chosen, not measured; what is published is cited. Kernel and application mixes come
from real traces (`workloads.py`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from privacy.published_rates import LLAMA3_DAYS, LLAMA3_HOSTS, LLAMA3_INTERRUPTIONS
from wire.catalogue import Section

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]

_MILLION = 1_000_000
_WEEK_S = 604_800

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

_FAULT_HOST_SECONDS: Final = LLAMA3_HOSTS * LLAMA3_DAYS * 86_400

# Chance that a host meets a cause of tail latency in one week; chosen, for want of published rates,
# and so low that few hosts meet more than the two that a host may report.
_INCIDENTS_A_WEEK: Final = {
    "cpu_contention": 0.06, "cgroup_throttling": 0.03, "memory_pressure": 0.025, "disk_io": 0.04,
    "nic_cross_traffic": 0.05, "nic_limit_or_loss": 0.02, "pcie_pressure": 0.015,
    "gpu_thermal_or_power_limit": 0.07, "gpu_hardware_fault": 0.01, "gpu_shared": 0.02,
    "communication_wait": 0.10, "input_starvation": 0.06, "unknown": 0.02,
}  # fmt: skip


def draw_samples(section: Section, load: Floats, samples: Rows, rng: np.random.Generator) -> Rows:
    """Draw int64[hosts, bins]: each host's samples around its level, with the gauge's spread."""
    if section.bins is None or section.name not in _GAUGES:
        return np.zeros((len(load), section.length), dtype=np.int64)
    idle, busy, spread = _GAUGES[section.name]
    level = idle + (busy - idle) * load
    uppers = np.array(section.bins.edges[1:], dtype=np.float64)
    # The logistic curve stands in for the normal distribution: within 1 % of it at this scale.
    below = 1.0 / (1.0 + np.exp(np.clip(-1.702 * (uppers - level[:, None]) / spread, -60, 60)))
    edges = np.hstack([np.zeros((len(load), 1)), below, np.ones((len(load), 1))])
    drawn: Rows = np.asarray(rng.multinomial(samples, np.diff(edges, axis=1)), dtype=np.int64)
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


def event_rates(section: Section) -> Floats:
    """Return float[cells]: the chance of each indicator on one host in a window of its cadence."""
    weeks = section.cadence_s / _WEEK_S
    if section.name == "hardware_faults":
        # The first classes of the table are the published causes, in their order.
        published = zip(section.cells, LLAMA3_INTERRUPTIONS, strict=False)
        expected = {
            name: count * section.cadence_s / _FAULT_HOST_SECONDS
            for name, (_cause, count) in published
        }
    elif section.name == "incidents":
        expected = {name: chance * weeks for name, chance in _INCIDENTS_A_WEEK.items()}
    else:
        expected = {}
    return np.array([min(expected.get(cell, 0.0), 1.0) for cell in section.cells])
