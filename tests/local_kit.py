"""Records, clocks and rows for tests of what stays on a host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectors.boot_clock import ClockPoint
from collectors.records.activity import (
    GpuCoverage,
    HostTable,
    HostTicks,
    KernelActivity,
    Observation,
)
from edge_agent.local.local_rows import Flattener, MetricRow
from wire.catalogue import Catalogue

S = 1_000_000_000
BOOT = 5_000 * S
UNIX = 1_800_000_000 * S
POINT = ClockPoint(BOOT, UNIX, 100)


@dataclass(frozen=True)
class FutureValue:
    """A record that no code knows: name, value, unit."""

    name: str
    value: float
    unit: str
    key: str
    boottime_ns: int


def activity(at_ns: int = BOOT, kernel: str = "gemm_kernel", gpu_ns: int = 5_000) -> KernelActivity:
    return KernelActivity(
        0, kernel, "gemm", "llm_training", 3, gpu_ns, ((10, 3),), 1_000_000, at_ns
    )


def ticks(at_ns: int = BOOT, count: int = 100, step: int = 7) -> HostTicks:
    times = at_ns + np.arange(count, dtype=np.int64) * (S // 100)
    column = np.arange(count, dtype=np.uint64) * np.uint64(step)
    return HostTicks(
        ("run_delay_ns", "switches"), times, np.stack([column, column * 2], axis=1), 0, 0
    )


def table(at_ns: int = BOOT) -> HostTable:
    values = np.array([[10, 0], [20, 4_000]], dtype=np.int64)
    return HostTable("cgroup", ("/a", "/b"), ("cpu_ns", "send_bytes"), values, at_ns, S)


def one_of_each(at_ns: int = BOOT) -> list[object]:
    return [
        activity(at_ns),
        GpuCoverage("replay-0", 0, at_ns, S),
        Observation("host_cpu", "user", 250_000, at_ns),
        Observation("hardware_faults", "faulty_gpu", 1, at_ns),
        ticks(at_ns),
        table(at_ns),
        FutureValue("queue_depth_bytes", 17.5, "", "nvme0", at_ns),
    ]


def at(boottime_ns: int) -> ClockPoint:
    return ClockPoint(boottime_ns, UNIX + boottime_ns - BOOT, 100)


def flattener() -> Flattener:
    return Flattener(Catalogue.load())


def metric(at_ns: int, value: float = 1.0, name: str = "level", key: str = "") -> MetricRow:
    return MetricRow(at_ns, 0, "test", name, key, "", value)
