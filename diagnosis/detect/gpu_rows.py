"""The GPUs of one subject as one row: of each signal the worst of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import Frame, Signals
from diagnosis.frames.signals import SIGNALS, Scope, floors_of

_NAMES: Final = tuple(floors_of(SIGNALS, Scope.GPU))
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
_DOWN_IS_WORSE: Final = np.array([SIGNALS[name].hurts == "down" for name in _NAMES])
_NAN: Final = float("nan")

Row = NDArray[np.float64]


def gpu_row(frame: Frame, indices: tuple[int, ...]) -> Row:
    """Give float64[signals of GPUs]; NaN where a signal was not measured, or says nothing."""
    rows = [_row(frame.gpus[index]) for index in indices if index in frame.gpus]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return np.full(len(_NAMES), _NAN)
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
    return np.array([_NAN if name in hidden else gpu.get(name, _NAN) for name in _NAMES])
