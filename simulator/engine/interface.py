"""What an engine is given for each window, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.released import Capacity, ReleasedWindow, SuppressedWindow
from simulator.fleet.hosts import FleetState
from transport.kafka.kafka_frame import KafkaSettings
from wire.task import Task

BLOCK_HOSTS: Final = 1024
"""A `masked` window of 12,500 hosts x 942 words took 0.93 core-s in blocks of 256 hosts, 0.80 in
blocks of 512 and 0.75 in blocks of 1,024, whose rows are 8 MB."""


class Noise(StrEnum):
    """Who draws a host's noise.

    TABLE   the exact table, fed from the operating system
    OPENDP  opendp's sampler, made by others; 9 to 11 core-seconds a window of 12,500 hosts
    SEEDED  the exact table over a repeatable stream: a scenario repeats bit for bit
    NONE    nothing at all, so that rounding shows alone; for tests
    """

    TABLE = "table"
    OPENDP = "opendp"
    SEEDED = "seeded"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How an engine works; none of it changes a distribution.

    seed            of noise and rounding, where `noise` repeats; of rows always
    processes       that share the hosts, by blocks; 1 works in this process
    block_hosts     hosts of a block: seeded values are those of their block, so that any number of
                    processes gives the same ones
    folder          scratch of `exact`: ledgers, log, states; None: a temporary one
    kafka           `exact` sends through this broker instead of the embedded log
    """

    noise: Noise = Noise.TABLE
    seed: int = 0
    processes: int = 1
    block_hosts: int = BLOCK_HOSTS
    folder: Path | None = None
    kafka: KafkaSettings | None = None


class RowSource(Protocol):
    """Draws what the hosts of one task measured; `simulator.fleet.FleetRows` is one."""

    def block(
        self,
        state: FleetState,
        lo: int,
        hi: int,
        rng: np.random.Generator,
        out: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Return int64[hi - lo, k]: one window of hosts lo .. hi - 1 in base units."""
        ...


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of one window, or of a row of equal windows, at the aggregators.

    start       Unix seconds of the first window
    released    int64[d], steps, check words included; None where nothing was released
    n           accepted hosts; of several windows, the sum of theirs; 0 without a release
    refused     reason -> what the parties refused: reports, batches, hosts; or hosts withheld
    reason      why nothing was released, "" for a release
    """

    start: int
    released: NDArray[np.int64] | None
    n: int
    refused: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class WindowOutcome(Settled):
    """What came of windows of one task, beside the truth.

    stage_s     stage -> CPU seconds, all processes together
    truth       int64[k], base units: sum of the rows of the hosts that reported in time
    reporting   those hosts, summed over the windows
    windows     how many windows of the task this is the sum of
    capacity    GPUs of the accepted hosts, for shares of wall time; None without a release
    """

    task: Task
    stage_s: Mapping[str, float]
    truth: NDArray[np.int64] = field(repr=False)
    reporting: int
    windows: int = 1
    capacity: Capacity | None = None


class MemoryStore:
    """Keeps what ends in memory, for simulations and benchmarks: see `ReleaseStore`."""

    def __init__(self) -> None:
        self.written: list[ReleasedWindow] = []
        self.suppressed: list[SuppressedWindow] = []

    def write(self, release: ReleasedWindow) -> None:
        self.written.append(release)

    def repair(self) -> int:
        return 0

    def suppress(self, window: SuppressedWindow) -> None:
        self.suppressed.append(window)

    def tidy(self, now_s: float) -> None:
        """See `ReleaseStore.tidy`: memory has no files."""
