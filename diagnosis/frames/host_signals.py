"""Signals of the host, from the tables of one second."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

from collectors.records.activity import HostTable, Observation

from .columns import Columns
from .signals import SIGNALS, Scope, SignalTable

_MEANS: Final = {
    "send_queue_bytes": ("net_send_queue_bytes", "net_sends"),
    "srtt_us": ("net_srtt_us", "net_srtts"),
}
"""Signal -> column of sums, column of how many were added up."""

_PRESSURE: Final = {
    ("cpu", "some_ns"), ("cpu", "full_ns"), ("memory", "some_ns"), ("memory", "full_ns"),
    ("io", "some_ns"), ("io", "full_ns"), ("irq", "full_ns"),
}  # fmt: skip

_LEVELS: Final = {
    ("host_cpu", "steal"): "steal_percent",
    ("host_cpu", "iowait"): "iowait_percent",
    ("host_memory", "used"): "memory_used_percent",
    ("host_memory", "cached"): "memory_cached_percent",
}
"""Observations in millionths of 100 %."""

_FAULTS: Final = {
    "system_memory": "memory",
    "cpu": "processor",
    "ssd": "disk",
    "nic": "network",
    "network_switch_or_cable": "network",
    "power_supply": "power",
    "faulty_gpu": "gpu",
    "gpu_hbm3_memory": "gpu",
    "gpu_sram_memory": "gpu",
    "gpu_system_processor": "gpu",
    "gpu_thermal_interface_and_sensor": "gpu",
}
FAULT_KINDS: Final = (*dict.fromkeys(_FAULTS.values()), "other")


class HostSignals:
    """Plans what is where in the tables once, and reads them each second."""

    def __init__(self, table: SignalTable = SIGNALS) -> None:
        self._wanted = [
            (signal.name, signal.total, signal.minus, signal.per_column)
            for signal in table.values()
            if signal.total and Scope.HOST in signal.scopes
        ]
        self._busiest = [one for one in table.values() if one.busiest]
        self._layout: tuple[str, ...] | None = None

    def of(self, tables: Mapping[str, HostTable]) -> dict[str, float]:
        """Give what the tables say of the host; without a table its signals are absent."""
        found: dict[str, float] = {}
        cpu = tables.get("cpu")
        if cpu is not None:
            found |= self._of_cpus(cpu)
            found |= _of_disks(tables.get("device"), cpu.span_ns)
            found |= _of_peers(tables.get("peer"), cpu.span_ns)
        if "pressure" in tables:
            found |= pressure_signals(tables["pressure"])
        return found

    def _of_cpus(self, cpu: HostTable) -> dict[str, float]:
        if cpu.columns != self._layout:
            self._layout = cpu.columns
            self._columns = Columns(cpu.columns, self._wanted)
            self._at = {name: place for place, name in enumerate(cpu.columns)}
            self._parts = np.array(
                [[c.startswith(one.busiest) for one in self._busiest] for c in cpu.columns],
                np.int64,
            )
        sums = cpu.values.sum(axis=0)
        rates = self._columns.rates(sums, cpu.span_ns).tolist()
        found = dict(zip(self._columns.names, rates, strict=True))
        per_s = 1e9 / cpu.span_ns
        largest = (cpu.values @ self._parts).max(axis=0).tolist()
        for one, value in zip(self._busiest, largest, strict=True):
            found[one.name] = float(value) * one.per_column * per_s
        for name, (column, counted) in _MEANS.items():
            count = int(sums[self._at[counted]]) if counted in self._at else 0
            if count and column in self._at:
                found[name] = int(sums[self._at[column]]) / count
        return found


def observed(observations: Iterable[Observation]) -> dict[str, float]:
    """Give levels that other sources sampled; the last of each counts."""
    return {
        _LEVELS[observation.section, observation.cell]: observation.value / 10_000
        for observation in observations
        if (observation.section, observation.cell) in _LEVELS
    }


def fault_signals(observations: Iterable[Observation], span_ns: int) -> dict[str, float]:
    """Give new hardware faults by kind, zeros included; asked where a source of faults runs."""
    counts = dict.fromkeys(FAULT_KINDS, 0)
    for observation in observations:
        counts[_FAULTS.get(observation.cell, "other")] += 1
    return {f"faults_{kind}_per_s": count * 1e9 / span_ns for kind, count in counts.items()}


def pressure_signals(table: HostTable) -> dict[str, float]:
    """Give the time stalled by resource."""
    per_s = 1e3 / table.span_ns
    return {
        f"pressure_{row}_{column.removesuffix('_ns')}_ms_per_s": value * per_s
        for row, values in zip(table.rows, table.values.tolist(), strict=True)
        for column, value in zip(table.columns, values, strict=True)
        if (row, column) in _PRESSURE
    }


def _of_disks(table: HostTable | None, span_ns: int) -> dict[str, float]:
    """Give the device whose requests took longest in all; no request has no latency."""
    if table is None:
        return {"worst_disk_ms_per_s": 0.0}
    total, requests, bins = _disk_columns(table.columns)
    worst: list[int] = table.values[table.values[:, total].argmax()].tolist()
    total_ms = worst[total] / 1e6
    found = {"worst_disk_ms_per_s": total_ms * 1e9 / span_ns}
    asked = sum(worst[place] for place in requests)
    if asked:
        found["worst_disk_latency_ms"] = total_ms / asked
    below = list(accumulate(worst[place] for place in bins))
    if below and below[-1]:
        found["worst_disk_latency_p99_ms"] = 2.0 ** (bisect_left(below, 0.99 * below[-1]) + 1) / 1e3
    return found


@lru_cache(maxsize=1)
def _disk_columns(columns: tuple[str, ...]) -> tuple[int, list[int], list[int]]:
    """Give the places of the whole time, of the counts of requests, and of the latencies' bins."""
    requests = [columns.index(name) for name in ("reads", "writes", "others")]
    bins = [at for at, name in enumerate(columns) if name.startswith("latency_log2_us_")]
    return columns.index("total_ns"), requests, bins


def _of_peers(table: HostTable | None, span_ns: int) -> dict[str, float]:
    most = 0 if table is None else int(table.values[:, table.columns.index("retransmits")].max())
    return {"worst_peer_retransmits_per_s": most * 1e9 / span_ns}
