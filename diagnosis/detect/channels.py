"""One frame as numbers of one subject: its own signals, the host's, other cgroups', its GPUs'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import Frame, Signals, Subject
from diagnosis.frames.signals import SIGNALS

GPU_FLOORS: Final = {
    "sm_clock_percent": 4.0,
    "sm_clock_mhz": 60.0,
    "memory_clock_mhz": 60.0,
    "throttled_thermal_percent": 10.0,
    "throttled_power_percent": 10.0,
    "throttled_hardware_percent": 10.0,
    "power_watts": 15.0,
    "power_limit_percent": 5.0,
    "temperature_celsius": 3.0,
    "pcie_tx_bytes_per_s": 1e8,
    "pcie_rx_bytes_per_s": 1e8,
    "pcie_replays_per_s": 1.0,
    "pcie_width_percent": 5.0,
    "pcie_generation_percent": 2.0,
    "nvlink_errors_per_s": 0.2,
    "nvlinks_down_count": 0.2,
    "copy_to_device_bytes_per_s": 1e8,
    "copy_to_host_bytes_per_s": 1e8,
    "ecc_corrected_per_s": 0.5,
    "ecc_uncorrected_per_s": 0.1,
    "rows_remapped_per_s": 0.1,
    "row_remap_pending_count": 0.1,
    "row_remap_failed_count": 0.1,
    "gpu_lost_count": 0.1,
    "gpu_silent_count": 0.1,
    "xids_memory_per_s": 0.1,
    "xids_processor_per_s": 0.1,
    "xids_faulty_per_s": 0.1,
    "xids_power_per_s": 0.1,
    "xids_other_per_s": 0.1,
    "gpu_busy_percent": 8.0,
    "gpu_memory_busy_percent": 8.0,
    "gpu_memory_used_percent": 5.0,
    "gpu_processes_count": 0.3,
}
"""Signals and the least spread of each that counts, in its unit. A generation of the link halves
its bandwidth, from 5 to 4 as from 4 to 3: a fall of 20 percent weighs what half of the lanes do."""

_LOWERED: Final = frozenset({
    "pcie_width_percent", "pcie_generation_percent", "sm_clock_percent", "sm_clock_mhz",
    "memory_clock_mhz",
})  # fmt: skip
"""What a GPU that has nothing to do lowers by itself, to save power."""
_IN_USE_PERCENT: Final = 10.0
"""Busy less than this, a GPU may be put to sleep between its kernels."""
_AWAKE_PERCENT: Final = 30.0
"""Where nobody tells how busy it is, as under MIG: asleep, an H100 or A100 has 15 to 18 % of its
clock."""
_DOWN_IS_WORSE: Final = np.array([SIGNALS[name].hurts == "down" for name in GPU_FLOORS])
_NAN: Final = float("nan")

Row = NDArray[np.float64]


def gpu_row(frame: Frame, indices: tuple[int, ...]) -> Row:
    """Give float64[GPU_FLOORS]; NaN where a signal was not measured, or says nothing."""
    rows = [_row(frame.gpus[index]) for index in indices if index in frame.gpus]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return np.full(len(GPU_FLOORS), _NAN)
    stacked = np.stack(rows)
    worst = np.where(_DOWN_IS_WORSE, np.fmin.reduce(stacked), np.fmax.reduce(stacked))
    return np.asarray(worst, dtype=np.float64)


def in_use(gpu: Signals) -> bool:
    """Whether a GPU works: of one that does not, a slow clock or link accuses nobody."""
    busy = gpu.get("gpu_busy_percent")
    if busy is not None:
        return busy >= _IN_USE_PERCENT
    return gpu.get("sm_clock_percent", 0.0) >= _AWAKE_PERCENT


def _row(gpu: Signals) -> Row:
    hidden = frozenset[str]() if in_use(gpu) else _LOWERED
    return np.array([_NAN if name in hidden else gpu.get(name, _NAN) for name in GPU_FLOORS])


Floats = NDArray[np.float64]


class ChannelPlace(StrEnum):
    """Where a channel's signal is read."""

    OWN = "own"
    HOST = "host"
    OTHER = "other"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Channel:
    """One number a second of one subject.

    floor   the least spread that counts, in the signal's unit: closer to usual is never unusual
    """

    place: ChannelPlace
    signal: str
    floor: float

    @property
    def name(self) -> str:
        return f"{self.place}.{self.signal}"

    @property
    def group(self) -> str:
        return SIGNALS[self.signal].group


_OWN: Final = {
    "run_delay_ms_per_s": 8.0,
    "cpu_ms_per_s": 20.0,
    "switches_per_s": 50.0,
    "switches_involuntary_per_s": 10.0,
    "throttled_delay_ms_per_s": 5.0,
    "throttled_ms_per_s": 5.0,
    "throttled_periods_percent": 5.0,
    "net_send_bytes_per_s": 2e5,
    "net_receive_bytes_per_s": 2e5,
    "block_ios_per_s": 5.0,
    "block_read_bytes_per_s": 2e5,
    "block_write_bytes_per_s": 2e5,
    "page_faults_per_s": 100.0,
    "reclaim_ms_per_s": 2.0,
    "sleep_ms_per_s": 40.0,
    "preempted_ms_per_s": 8.0,
    "block_wait_ms_per_s": 5.0,
    "net_send_wait_ms_per_s": 5.0,
    "net_receive_wait_ms_per_s": 15.0,
    "round_trip_us": 100.0,
    "round_trip_least_us": 100.0,
    "gpu_failed_calls_per_s": 0.2,
    "gpu_own_percent": 5.0,
    "gpu_others_percent": 5.0,
    "gpu_others_launches_per_s": 50.0,
    "gpu_launches_per_s": 50.0,
    "gpu_wait_ms_per_s": 20.0,
    "collectives_per_s": 5.0,
    "collective_ms_per_s": 10.0,
    "copy_to_device_bytes_per_s": 1e7,
    "copy_to_host_bytes_per_s": 1e7,
}
_HOST: Final = {
    "run_delay_ms_per_s": 20.0,
    "cpu_ms_per_s": 50.0,
    "switches_per_s": 200.0,
    "switches_involuntary_per_s": 50.0,
    "wakeups_per_s": 200.0,
    "busiest_cpu_ms_per_s": 40.0,
    "worst_cpu_run_delay_ms_per_s": 20.0,
    "steal_percent": 1.0,
    "iowait_percent": 2.0,
    "throttled_delay_ms_per_s": 5.0,
    "softirq_net_rx_ms_per_s": 2.0,
    "softirq_net_tx_ms_per_s": 2.0,
    "softirq_block_ms_per_s": 1.0,
    "softirq_sched_ms_per_s": 2.0,
    "softirqs_net_rx_per_s": 100.0,
    "softirqs_net_tx_per_s": 50.0,
    "softirqs_block_per_s": 50.0,
    "busiest_cpu_softirq_ms_per_s": 3.0,
    "irqs_per_s": 200.0,
    "irq_ms_per_s": 2.0,
    "busiest_cpu_irqs_per_s": 200.0,
    "net_send_bytes_per_s": 5e5,
    "net_receive_bytes_per_s": 5e5,
    "net_sends_per_s": 50.0,
    "net_receives_per_s": 50.0,
    "send_queue_bytes": 5e4,
    "retransmits_per_s": 2.0,
    "worst_peer_retransmits_per_s": 2.0,
    "link_bytes_per_s": 1e6,
    "srtt_us": 300.0,
    "queue_drops_per_s": 2.0,
    "net_send_wait_ms_per_s": 10.0,
    "net_receive_wait_ms_per_s": 30.0,
    "block_reads_per_s": 10.0,
    "block_writes_per_s": 10.0,
    "block_read_bytes_per_s": 1e6,
    "block_write_bytes_per_s": 1e6,
    "block_ms_per_s": 15.0,
    "block_queue_ms_per_s": 10.0,
    "worst_disk_ms_per_s": 15.0,
    "worst_disk_latency_ms": 0.5,
    "worst_disk_latency_p99_ms": 2.0,
    "block_waits_per_s": 20.0,
    "numa_migrations_per_s": 5.0,
    "page_faults_per_s": 500.0,
    "reclaim_direct_per_s": 2.0,
    "reclaim_direct_ms_per_s": 2.0,
    "reclaim_cgroup_per_s": 2.0,
    "reclaim_cgroup_ms_per_s": 2.0,
    "memory_used_percent": 2.0,
    "memory_cached_percent": 2.0,
    "pressure_cpu_some_ms_per_s": 20.0,
    "pressure_memory_some_ms_per_s": 5.0,
    "pressure_memory_full_ms_per_s": 5.0,
    "pressure_io_some_ms_per_s": 15.0,
    "pressure_io_full_ms_per_s": 15.0,
    "pressure_irq_full_ms_per_s": 5.0,
    "faults_memory_per_s": 0.2,
    "faults_processor_per_s": 0.2,
    "faults_disk_per_s": 0.2,
    "faults_network_per_s": 0.2,
    "faults_power_per_s": 0.2,
    "faults_gpu_per_s": 0.2,
    "faults_other_per_s": 0.2,
}
_OTHER: Final = {
    "run_delay_ms_per_s": 20.0,
    "cpu_ms_per_s": 50.0,
    "net_send_bytes_per_s": 5e5,
    "net_receive_bytes_per_s": 5e5,
    "block_ios_per_s": 20.0,
    "block_read_bytes_per_s": 1e6,
    "block_write_bytes_per_s": 1e6,
    "page_faults_per_s": 500.0,
    "reclaim_ms_per_s": 2.0,
}
CHANNELS: Final = tuple(
    Channel(place, signal, floor)
    for place, floors in zip(ChannelPlace, (_OWN, _HOST, _OTHER, GPU_FLOORS), strict=True)
    for signal, floor in floors.items()
)
CHANNEL_NAMES: Final = tuple(channel.name for channel in CHANNELS)
INDEX: Final = {name: place for place, name in enumerate(CHANNEL_NAMES)}
FLOORS: Final = np.array([channel.floor for channel in CHANNELS])
OTHER_SIGNALS: Final = tuple(_OTHER)


@dataclass(slots=True, eq=False)
class Readings:
    """One frame, read once for all its subjects.

    names    busy cgroups, subjects' own included
    table    float64[cgroups, OTHER_SIGNALS], 0 where not measured
    known    bool[cgroups, OTHER_SIGNALS], where measured
    """

    frame: Frame
    names: tuple[str, ...]
    table: Floats
    known: NDArray[np.bool_]
    _host: Floats | None = None

    @classmethod
    def of(cls, frame: Frame) -> Readings:
        """Read what all subjects share."""
        rows = [[row.get(name, _NAN) for name in _OTHER] for row in frame.cgroups.values()]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(_OTHER))
        known = table == table  # noqa: PLR0124
        table[~known] = 0.0
        return cls(frame, tuple(frame.cgroups), table, known)

    def of_subject(self, subject: Subject) -> Floats:
        """Give float64[CHANNELS]; NaN where a signal was not measured."""
        if self._host is None:
            self._host = _values(self.frame.host, _HOST)
        own = _values(subject.signals, _OWN)
        gpu = gpu_row(self.frame, subject.gpus)
        return np.concatenate((own, self._host, self._others(subject.cgroup), gpu))

    def _others(self, cgroup: str) -> Floats:
        others = np.array([not related(name, cgroup) for name in self.names], dtype=bool)
        sums = others @ self.table
        return np.asarray(np.where(others @ self.known > 0, sums, _NAN))


def related(other: str, cgroup: str) -> bool:
    """Whether a cgroup is the subject's own, above or below it."""
    if other in ("", "/") or other == cgroup:
        return True
    return cgroup.startswith(f"{other}/") or other.startswith(f"{cgroup}/")


def read(frame: Frame, key: str) -> Floats:
    """Give float64[CHANNELS] of one subject; NaN where a signal was not measured."""
    return Readings.of(frame).of_subject(frame.subjects[key])


def _values(signals: Mapping[str, float], names: Mapping[str, float]) -> Floats:
    return np.array([signals.get(name, _NAN) for name in names])
