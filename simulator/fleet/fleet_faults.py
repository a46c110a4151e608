"""What breaks and how often: published causes and rates, lemon hosts, causes of tail latency."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from privacy.plan import LLAMA3_DAYS, LLAMA3_HOSTS, LLAMA3_INTERRUPTIONS
from simulator.scenario import Faults
from wire.catalogue import Catalogue, Section

from .hosts import HostInventory

Floats = NDArray[np.float64]

DAY_S: Final = 86_400
WEEK_S: Final = 604_800
FAULT_WINDOW_S: Final = 8 * WEEK_S

CAUSE_COUNTS: Final = np.array([count for _, count in LLAMA3_INTERRUPTIONS], dtype=np.float64)
"""By place in the catalogue's table of hardware faults, whose first classes are these causes."""

_WITHOUT_REPAIR: Final = frozenset(
    {"software_bug", "nccl_watchdog_timeout", "silent_data_corruption", "dependency"}
)
"""After these a job is started again on the same hosts."""

_FAULT_INCIDENTS: Final = {
    "faulty_gpu": "gpu_hardware_fault",
    "gpu_hbm3_memory": "gpu_hardware_fault",
    "gpu_sram_memory": "gpu_hardware_fault",
    "gpu_system_processor": "gpu_hardware_fault",
    "network_switch_or_cable": "nic_limit_or_loss",
    "nic": "nic_limit_or_loss",
    "gpu_thermal_interface_and_sensor": "gpu_thermal_or_power_limit",
    "power_supply": "gpu_thermal_or_power_limit",
    "ssd": "disk_io",
    "system_memory": "memory_pressure",
}
"""The cause of tail latency that a fault shows as."""

INCIDENTS_A_WEEK: Final = {
    "cpu_contention": 0.06, "cgroup_throttling": 0.03, "memory_pressure": 0.025, "disk_io": 0.04,
    "nic_cross_traffic": 0.05, "nic_limit_or_loss": 0.02, "pcie_pressure": 0.015,
    "gpu_thermal_or_power_limit": 0.07, "gpu_hardware_fault": 0.01, "gpu_shared": 0.02,
    "communication_wait": 0.10, "input_starvation": 0.06, "unknown": 0.02,
}  # fmt: skip
"""Chance that a host meets a cause of tail latency in one week; chosen, for want of published
rates, and so low that few hosts meet more than a host may report."""


def needs_repair(catalogue: Catalogue) -> NDArray[np.bool_]:
    """Say for each published cause, by place, whether its host leaves service."""
    names = catalogue.classes("hardware_fault")[: len(CAUSE_COUNTS)]
    return np.array([name not in _WITHOUT_REPAIR for name in names])


def incident_of_fault(catalogue: Catalogue) -> NDArray[np.int64]:
    """Give for each published cause the place of the incident that it shows as, -1 for none."""
    names = catalogue.classes("hardware_fault")[: len(CAUSE_COUNTS)]
    incidents = list(catalogue.classes("incident"))
    shown = [_FAULT_INCIDENTS.get(name) for name in names]
    return np.array([-1 if incident is None else incidents.index(incident) for incident in shown])


def incident_rates(catalogue: Catalogue, scale: float) -> Floats:
    """Return float[classes]: incidents of each class per host and second."""
    names = catalogue.classes("incident")
    chances = np.array([INCIDENTS_A_WEEK.get(name, 0.0) for name in names]) * scale
    return np.asarray(-np.log1p(-np.minimum(chances, 0.999)) / WEEK_S)


def draw_causes(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw causes by their published counts: places in the table of hardware faults."""
    return rng.choice(len(CAUSE_COUNTS), size=count, p=CAUSE_COUNTS / CAUSE_COUNTS.sum())


def fault_rates(faults: Faults, inventory: HostInventory) -> Floats:
    """Return float[hosts]: faults per second."""
    healthy = faults.per_1000_node_days / 1000
    daily = np.where(inventory.lemon, faults.lemon_faults_per_day, healthy)
    return np.asarray(daily / DAY_S)


def event_rates(section: Section) -> Floats:
    """Return float[cells]: the chance of each indicator on one host in its window.

    That of the shipped plan: a week for incidents, eight for hardware faults.
    """
    if section.name == "hardware_faults":
        host_seconds = LLAMA3_HOSTS * LLAMA3_DAYS * DAY_S
        expected = np.zeros(section.length)
        expected[: len(CAUSE_COUNTS)] = CAUSE_COUNTS * FAULT_WINDOW_S / host_seconds
    elif section.name == "incidents":
        expected = np.array([INCIDENTS_A_WEEK.get(c, 0.0) for c in section.cells])
    else:
        expected = np.zeros(section.length)
    return np.minimum(expected, 1.0)
