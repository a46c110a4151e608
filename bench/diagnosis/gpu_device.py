"""A GPU that is not there: what its fake driver says of it, and how long its work takes.

One state stands behind both, so that what NVML tells and what the job feels agree. The states are
made; everything that reads them is real: pynvml's own binding in a child process, the sources, the
frames.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

WORK_MS: Final = 22.0
"""A step's work on an undisturbed GPU."""
LINKS: Final = 18
LANES: Final = 16
GENERATION: Final = 5
_CLOCK_MHZ: Final = 1980
_MEMORY_MHZ: Final = 2619
_GIB: Final = 1 << 30
_LIMIT_W: Final = 700
_NEIGHBOUR_MEMORY: Final = 9 * _GIB
_JOB_MEMORY: Final = 31 * _GIB
_EXCHANGE: Final = 0.55
"""Share of a step that is NVLink's, with which links that are down lengthen it."""
_TRANSFER: Final = 0.3
"""Share of a step that is PCIe's."""


@dataclass(slots=True)
class Gpu:
    """State of one GPU and of who is on it.

    job_pid     the process whose steps are watched
    clock       over its maximum, 0..1
    throttle    NVML's bits
    others      (pid, SM percent) of other processes on it
    crowding    what other users cost beyond the SM time they take: 1.0 nothing
    xids        every event so far, (code, number)
    lost        every call fails with this code of NVML: 15 fallen off the bus, 16 needs a reset
    scale       work of a step, relative: the job's own doing
    """

    index: int
    job_pid: int = 0
    clock: float = 1.0
    throttle: int = 0
    power_w: float = 430.0
    temperature: float = 58.0
    busy: float = 93.0
    memory_busy: float = 42.0
    corrected: float = 0.0
    uncorrected: int = 0
    rows: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    links_down: int = 0
    link_errors: float = 0.0
    lanes: int = LANES
    generation: int = GENERATION
    others: dict[int, float] = field(default_factory=dict)
    mig: bool = False
    crowding: float = 1.0
    xids: dict[int, int] = field(default_factory=dict)
    lost: int = 0
    scale: float = 1.0

    def work_ms(self) -> float:
        """How long the work of a step takes."""
        taken = min(0.9, sum(self.others.values()) / 100.0)
        exchange = LINKS / max(1, LINKS - self.links_down)
        link = (LANES / self.lanes) * 2.0 ** (GENERATION - self.generation)
        parts = (1 - _EXCHANGE - _TRANSFER) + _EXCHANGE * exchange + _TRANSFER * link
        return WORK_MS * self.scale * parts * self.crowding / (self.clock * (1.0 - taken))

    def lines(self, noise: random.Random) -> Iterator[str]:
        """Give the fake driver's lines for this GPU, with the flutter that readings have.

        `xid` is not here: its places are the driver's, not the GPU's.
        """
        yield f"{self.index} {_value('GetUtilizationRates', *self._busy(noise))}"
        used = _JOB_MEMORY + _NEIGHBOUR_MEMORY * len(self.others)
        yield f"{self.index} {_value('GetMemoryInfo_v2', used, 80 * _GIB)}"
        yield f"{self.index} {_value('GetPowerUsage', self._power_mw(noise))}"
        yield f"{self.index} {_value('GetEnforcedPowerLimit', _LIMIT_W * 1000)}"
        degrees = round(self.temperature + noise.gauss(0, 0.5))
        yield f"{self.index} {_value('GetTemperature', degrees)}"
        yield f"{self.index} {_value('GetClockInfo.1', round(_CLOCK_MHZ * self.clock / 15) * 15)}"
        yield f"{self.index} {_value('GetClockInfo.2', _MEMORY_MHZ)}"
        yield f"{self.index} {_value('GetCurrentClocksThrottleReasons', self.throttle)}"
        yield f"{self.index} {_value('GetTotalEccErrors.0.0', int(self.corrected))}"
        yield f"{self.index} {_value('GetTotalEccErrors.1.0', self.uncorrected)}"
        yield f"{self.index} {_value('GetRemappedRows', *self.rows)}"
        up = LINKS - 1  # of those that are down the driver is not asked
        errors = int(self.link_errors)
        yield f"{self.index} {_value(f'GetNvLinkErrorCounter.{up}.1', errors)}"
        yield f"{self.index} {_value('GetCurrPcieLinkWidth', self.lanes)}"
        yield f"{self.index} {_value('GetCurrPcieLinkGeneration', self.generation)}"
        for link in range(self.links_down):
            yield f"{self.index} {_value(f'GetNvLinkState.{link}', 0)}"
        yield from self._users(noise)
        if self.lost:
            yield f"{self.index} * error {self.lost}"

    def _users(self, noise: random.Random) -> Iterator[str]:
        if self.mig:
            yield f"{self.index} {_value('GetMigMode', 1, 1)}"
        own = max(0.0, self.busy - sum(self.others.values()))
        people = [(self.job_pid, own, _JOB_MEMORY)] if self.job_pid else []
        people += [(pid, share, _NEIGHBOUR_MEMORY) for pid, share in self.others.items()]
        for place, (pid, share, memory) in enumerate(people):
            # Under MIG each process is on an instance of its own, which knows no share of it.
            device = 100 * (self.index + 1) + place if self.mig else self.index
            place = 0 if self.mig else place  # noqa: PLW2901
            yield f"{device} {_value(f'GetComputeRunningProcesses_v3.{place}', pid, memory)}"
            if self.mig:
                yield f"{device} nvmlDeviceGetProcessUtilization error 3"
                continue
            shown = min(100, max(0, round(share + noise.gauss(0, 1.5 if share else 0.0))))
            yield f"{device} {_value(f'GetProcessUtilization.{place}', pid, shown)}"

    def _busy(self, noise: random.Random) -> tuple[int, int]:
        shown = (self.busy + noise.gauss(0, 1.5), self.memory_busy + noise.gauss(0, 1.5))
        busy, memory = (min(100, max(0, round(one))) for one in shown)
        return busy, memory

    def _power_mw(self, noise: random.Random) -> int:
        drawn = self.power_w * (0.35 + 0.65 * self.clock) + noise.gauss(0, 6.0)
        return max(0, round(1000 * min(drawn, _LIMIT_W)))


def xid_lines(gpus: list[Gpu]) -> Iterator[str]:
    """Give the events of all GPUs: one place of the fake each for the last code of a GPU."""
    for gpu in gpus:
        if gpu.xids:
            last, number = next(reversed(gpu.xids)), sum(gpu.xids.values())
            yield f"* xid.{gpu.index} value {gpu.index} {last} {number}"


def _value(function: str, *numbers: int) -> str:
    return f"nvmlDevice{function} value {' '.join(map(str, numbers))}"
