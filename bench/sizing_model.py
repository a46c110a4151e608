"""What a fleet needs of machines, from what a report costs: cores, workers, partitions, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from wire.bounds import Scheme
from wire.envelope import OVERHEAD_BYTES
from wire.report import report_length

WINDOW_S: Final = 60
EPOCH_S: Final = 3600
DAY_S: Final = 86_400
BUSY: Final = 0.5
"""Of a core that is planned for: reports of a window come together, and an outage is made up."""
LEAST_PARTITIONS: Final = 4
REPLICAS: Final = 3
BROKER_BYTES_S: Final = 50e6
"""That a broker is planned to take, replicas counted: a quarter of what one SATA SSD writes."""
SIZE_UNITS: Final = {
    "leader_cores": "cores",
    "helper_cores": "cores",
    "broker_cores": "cores",
    "workers": "of each role",
    "partitions": "of the report topic",
    "brokers": "brokers",
    "log_bytes_a_second": "B/s, one replica",
    "log_bytes_a_day": "B, one replica",
    "leader_bytes": "B of memory, vectors of one window",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Core-microseconds of a report: whatever its width, and for each of its d words."""

    report_us: float
    word_us: float

    def of(self, d: int) -> float:
        """Core-microseconds of a report of d words."""
        return self.report_us + self.word_us * d


@dataclass(frozen=True, slots=True)
class Costs:
    """What both roles and the broker spend; epoch_us is an aggregator's for one epoch."""

    leader: Cost
    helper: Cost
    broker: Cost
    epoch_us: float


@dataclass(frozen=True, slots=True)
class Size:
    """What a fleet needs; units in SIZE_UNITS."""

    leader_cores: float
    helper_cores: float
    broker_cores: float
    workers: int
    partitions: int
    brokers: int
    log_bytes_a_second: float
    log_bytes_a_day: float
    leader_bytes: float


def fit(points: Sequence[tuple[int, float]]) -> Cost:
    """The straight line through (d, core-microseconds), by least squares.

    Raises      ValueError: fewer than two widths
    """
    if len({d for d, _us in points}) < 2:
        raise ValueError(f"sizing: expected two widths or more, got {len(points)} points")
    widths, costs = np.array(points, dtype=np.float64).T
    word_us, report_us = np.polyfit(widths, costs, 1)
    return Cost(float(report_us), float(word_us))


def size_of(hosts: int, d: int, one: Costs, several: Costs) -> Size:
    """What so many hosts need that report d words a minute.

    one, several    costs of one process a role, and of workers: these where a role outgrows a core
    """
    alone = _cores(hosts, d, one)
    cores = alone if max(alone[:2]) <= 1 else _cores(hosts, d, several)
    workers = ceil(max(cores[:2]))
    stored = report_length(d, Scheme.MASKED) + OVERHEAD_BYTES
    bytes_s = stored * hosts / WINDOW_S
    return Size(
        *cores,
        workers,
        max(LEAST_PARTITIONS, workers),
        max(REPLICAS, ceil(bytes_s * REPLICAS / BROKER_BYTES_S)),
        bytes_s,
        bytes_s * DAY_S,
        float(hosts * d * Scheme.MASKED.word_bytes),
    )


def _cores(hosts: int, d: int, costs: Costs) -> tuple[float, float, float]:
    """Cores of Leader, Helper and broker."""
    epochs = hosts / EPOCH_S * costs.epoch_us
    reports = [role.of(d) * hosts / WINDOW_S for role in (costs.leader, costs.helper, costs.broker)]
    leader, helper, broker = (us / 1e6 / BUSY for us in reports)
    return leader + epochs / 1e6 / BUSY, helper + epochs / 1e6 / BUSY, broker
