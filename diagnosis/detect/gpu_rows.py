"""The GPUs of one subject as one row: of each signal the worst of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import Frame, Signals
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
