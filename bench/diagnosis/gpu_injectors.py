"""What goes wrong with a GPU, in three intensities, and what only looks like it.

An injector changes the state of one `Gpu` as time passes, five times a second, and says when the
job stalls. Those of one cause are for training or judge: what `held_out` names was never looked at
while the rules were made, nor was any middle intensity.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.diagnosis.gpu_device import WORK_MS, Gpu
from diagnosis.detect.findings import Cause

TICK_S: Final = 0.2
LEVELS: Final = ("low", "middle", "high")
SW_POWER, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
_HEATING_S: Final = 3.0
_CLOCKS: Final = (0.72, 0.55, 0.42)


@dataclass(frozen=True, slots=True)
class Moment:
    """One turn of an injector.

    since_s     since its fault began
    neighbour   a process that really is there, for those that need another user
    """

    gpu: Gpu
    level: int
    since_s: float
    neighbour: int
    chance: random.Random

    def happens(self, per_s: float) -> bool:
        """Draw whether something of this rate happens in this turn."""
        return self.chance.random() < per_s * TICK_S


Turn = Callable[[Moment], float]
"""Changes the state; gives for how many ms the job stalls."""


@dataclass(frozen=True, slots=True)
class Injector:
    """One implementation of a cause; `cause` None: a hard negative, which is no GPU fault.

    held_out   it judges, and nothing is set on it
    mig        the GPU is cut into instances, from before the fault on
    """

    name: str
    cause: Cause | None
    turn: Turn
    held_out: bool = False
    mig: bool = False


def _hot(bits: int, now: Moment) -> float:
    """It heats up first; then the driver or the board holds the clock back."""
    now.gpu.temperature = 58.0 + 29.0 * min(1.0, now.since_s / _HEATING_S)
    if now.since_s >= _HEATING_S:
        now.gpu.throttle, now.gpu.clock = bits, _CLOCKS[now.level]
    return 0.0


def _capped(bits: int, now: Moment) -> float:
    now.gpu.throttle, now.gpu.clock = bits, _CLOCKS[now.level]
    now.gpu.power_w = 900.0 if bits & SW_POWER else 430.0
    return 0.0


def _error(code: int, now: Moment, *, uncorrected: bool = False, row: int | None = None) -> float:
    """An XID after which the job waits: for the row's replacement, the channel, the processor."""
    if not now.happens((0.7, 1.2, 2.0)[now.level]):
        return 0.0
    now.gpu.xids[code] = now.gpu.xids.get(code, 0) + 1
    now.gpu.uncorrected += uncorrected
    if row is not None:
        now.gpu.rows[row] += 1
        now.gpu.rows[2] = 1
    return (150.0, 300.0, 600.0)[now.level]


def _corrected(now: Moment) -> float:
    """A storm of corrected errors; the interrupts of some hold the job up."""
    now.gpu.corrected += (40.0, 150.0, 600.0)[now.level] * TICK_S
    return 30.0 if now.happens((2.0, 4.0, 4.9)[now.level]) else 0.0


def _links(now: Moment) -> float:
    down = (6, 9, 14)[now.level]
    if now.gpu.links_down != down:
        now.gpu.links_down = down
        now.gpu.xids[74] = now.gpu.xids.get(74, 0) + 1
    now.gpu.link_errors += (2.0, 10.0, 50.0)[now.level] * TICK_S
    return 0.0


def _lost(now: Moment) -> float:
    """Off the bus: one XID 79, then no call of the driver is answered and the job hangs."""
    now.gpu.xids.setdefault(79, 1)
    now.gpu.lost = 15 if now.since_s > 1.2 else 0  # NVML gives the event out first
    return 900.0 if now.happens(2.0) else 0.0


def _reset_required(now: Moment) -> float:
    """The driver gave the GPU up: no XID, and no call is answered until it is reset."""
    now.gpu.lost = 16
    return 900.0 if now.happens(2.0) else 0.0


def _shared(now: Moment) -> float:
    """Time-slicing: whoever else has work takes its turns."""
    now.gpu.others = {now.neighbour: (30.0, 50.0, 68.0)[now.level]}
    return 0.0


def _mps(now: Moment) -> float:
    """MPS: both run at once; the other takes SMs, and caches beside."""
    now.gpu.others = {now.neighbour: (24.0, 40.0, 58.0)[now.level]}
    now.gpu.crowding = 1.12
    return 0.0


def _mig(now: Moment) -> float:
    """The other instance has SMs and memory of its own; power and PCIe are one."""
    now.gpu.others = {now.neighbour: 0.0}
    now.gpu.crowding = (1.4, 1.7, 2.2)[now.level]
    return 0.0


def _narrow(now: Moment) -> float:
    now.gpu.lanes = (8, 4, 1)[now.level]
    return 0.0


def _slow(now: Moment) -> float:
    now.gpu.generation = (3, 2, 1)[now.level]
    return 0.0


def _lost_unannounced(now: Moment) -> float:
    """Off the bus without a word: no XID reaches NVML."""
    now.gpu.lost = 15
    return 900.0 if now.happens(2.0) else 0.0


def _retrained(now: Moment) -> float:
    """The link came up again with fewer lanes, and slower ones."""
    now.gpu.lanes, now.gpu.generation = ((8, 4), (8, 3), (4, 2))[now.level]
    return 0.0


def _idle_link(now: Moment) -> float:
    """Input comes late: the GPU sleeps between its kernels, and lowers clock and link by itself."""
    gpu = now.gpu
    gpu.busy, gpu.memory_busy, gpu.clock, gpu.generation = 4.0, 1.0, 0.17, 1
    gpu.scale = 1.0
    gpu.scale = 2.5 * WORK_MS / gpu.work_ms()
    return 0.0


def _nothing(_: Moment) -> float:
    return 0.0


def _batch(now: Moment) -> float:
    now.gpu.scale = (1.3, 1.6, 2.0)[now.level]
    return 0.0


def _application_xids(now: Moment) -> float:
    """13, 31 and 43 are the application's own mistakes."""
    if now.happens(0.5):
        code = now.chance.choice((13, 31, 43))
        before = now.gpu.xids.pop(code, 0)
        now.gpu.xids[code] = before + 1
    return 0.0


def _idle_neighbour(now: Moment) -> float:
    now.gpu.others = {now.neighbour: 0.0}
    return 0.0


def _near_limit(now: Moment) -> float:
    now.gpu.power_w, now.gpu.temperature = 690.0, 76.0
    return 0.0


def _trickle(now: Moment) -> float:
    now.gpu.corrected += 0.4 * TICK_S
    return 0.0


def _clock_steps(now: Moment) -> float:
    """The clock wanders with the load, and the work is not bound by it."""
    now.gpu.clock = 0.94 if int(now.since_s / 3) % 2 else 1.0
    now.gpu.scale = now.gpu.clock
    return 0.0


def _checkpoint(now: Moment) -> float:
    return 2_500.0 if 4.0 <= now.since_s < 4.0 + TICK_S else 0.0


_LIMIT, _FAULT = Cause.GPU_THERMAL_OR_POWER_LIMIT, Cause.GPU_HARDWARE_FAULT
_SHARING, _PCIE = Cause.GPU_SHARED, Cause.PCIE_PRESSURE

FAULTS: Final = (
    Injector("thermal_driver", _LIMIT, partial(_hot, SW_THERMAL)),
    Injector("power_cap", _LIMIT, partial(_capped, SW_POWER)),
    Injector("thermal_board", _LIMIT, partial(_hot, HW_THERMAL | HW_SLOWDOWN), held_out=True),
    Injector("power_brake", _LIMIT, partial(_capped, POWER_BRAKE | HW_SLOWDOWN), held_out=True),
    Injector("xid48_double_bit", _FAULT, partial(_error, 48, uncorrected=True)),
    Injector("xid63_row_remap", _FAULT, partial(_error, 63, row=0)),
    Injector("nvlink_down", _FAULT, _links),
    Injector("ecc_corrected", _FAULT, _corrected),
    Injector("reset_required", _FAULT, _reset_required),
    Injector("xid119_gsp", _FAULT, partial(_error, 119), held_out=True),
    Injector("xid94_contained", _FAULT, partial(_error, 94), held_out=True),
    Injector("xid62_controller", _FAULT, partial(_error, 62), held_out=True),
    Injector("xid64_remap_failed", _FAULT, partial(_error, 64, row=3), held_out=True),
    Injector("xid79_lost", _FAULT, _lost, held_out=True),
    Injector("xid95_uncontained", _FAULT, partial(_error, 95, uncorrected=True), held_out=True),
    Injector("lost_unannounced", _FAULT, _lost_unannounced, held_out=True),
    Injector("time_slice", _SHARING, _shared),
    Injector("mps_client", _SHARING, _mps, held_out=True),
    Injector("mig_neighbour", _SHARING, _mig, held_out=True, mig=True),
    Injector("link_narrow", _PCIE, _narrow),
    Injector("link_slow", _PCIE, _slow, held_out=True),
    Injector("link_retrained", _PCIE, _retrained, held_out=True),
)
NEGATIVES: Final = (
    Injector("none", None, _nothing),
    Injector("batch_size", None, _batch),
    Injector("application_xids", None, _application_xids),
    Injector("idle_neighbour", None, _idle_neighbour),
    Injector("near_power_limit", None, _near_limit),
    Injector("ecc_trickle", None, _trickle),
    Injector("clock_steps", None, _clock_steps),
    Injector("checkpoint", None, _checkpoint),
    Injector("idle_link", None, _idle_link),
    Injector("idle_mig", None, _idle_link, mig=True),
)
BY_NAME: Final[Mapping[str, Injector]] = {one.name: one for one in (*FAULTS, *NEGATIVES)}
ONCE: Final = frozenset({"xid79_lost", "reset_required", "lost_unannounced"})
"""There is no more or less of it."""
