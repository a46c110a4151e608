"""What a fleet needs of machines, from what a report costs: cores, fleets, bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from pathlib import Path
from typing import Final

import numpy as np

from transport.interface import RETENTION_S
from wire.envelope import OVERHEAD_BYTES
from wire.fields import Scheme
from wire.report import report_length

COSTS_FILE: Final = Path(__file__).with_name("plans") / "sizing_costs.json"
EPOCH_S: Final = 3600
DAY_S: Final = 86_400
RETENTION_DAYS: Final = RETENTION_S // DAY_S
BUSY: Final = 0.5
"""Of a core that is planned for: reports of a window come together, and an outage is made up."""
REPLICAS: Final = 3
"""Of each record. One was measured: each is taken to cost a broker as much, which is a bound."""
BROKER_BYTES_S: Final = 50e6
"""That a broker is planned to take, replicas counted: a quarter of what one SATA SSD writes."""
SIZE_UNITS: Final = {
    "reports_a_second": "reports/s",
    "leader_cores": "cores",
    "helper_cores": "cores",
    "broker_cores": "cores, all brokers",
    "fleets": "each a Leader, a Helper and topics of its own",
    "brokers": "brokers",
    "log_bytes_a_second": "B/s, one replica",
    "log_bytes_a_day": "B, one replica",
    "log_bytes_kept": "B on all brokers, replicas and retention counted",
    "leader_bytes": "B of memory, vectors of one window of each task",
}


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """What every host reports of one task: d words, once a window."""

    d: int
    window_s: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Core-microseconds of a report: whatever its width, and for each of its d words."""

    report_us: float
    word_us: float

    def of(self, d: int) -> float:
        return self.report_us + self.word_us * d


@dataclass(frozen=True, slots=True)
class Costs:
    """What both roles and the broker spend; epoch_us is an aggregator's for one epoch."""

    leader: Cost
    helper: Cost
    broker: Cost
    epoch_us: float


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Slopes of a benchmark, and where they come from.

    one             of one process a role
    error_percent   role -> how far `one` is off at a width that it was not fitted to
    source          date, commit, device and command
    """

    one: Costs
    error_percent: Mapping[str, float]
    source: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Size:
    """What the hosts need, all fleets that they are divided into together; units in SIZE_UNITS."""

    reports_a_second: float
    leader_cores: float
    helper_cores: float
    broker_cores: float
    fleets: int
    brokers: int
    log_bytes_a_second: float
    log_bytes_a_day: float
    log_bytes_kept: float
    leader_bytes: float


def fit(points: Sequence[tuple[int, float]]) -> Cost:
    """Fit (d, core-microseconds) by least squares. Raises ValueError below two widths."""
    if len({d for d, _us in points}) < 2:
        raise ValueError(f"sizing: expected two widths or more, got {len(points)} points")
    widths, costs = np.array(points, dtype=np.float64).T
    word_us, report_us = np.polyfit(widths, costs, 1)
    return Cost(float(report_us), float(word_us))


def shipped_costs(path: Path = COSTS_FILE) -> MeasuredCosts:
    """Read the slopes that came with this installation; `make bench-scale` measures them."""
    found = json.loads(path.read_text(encoding="utf-8"))
    one = found["one"]
    roles = {role: Cost(**one[role]) for role in ("leader", "helper", "broker")}
    costs = Costs(**roles, epoch_us=one["epoch_us"])
    return MeasuredCosts(costs, found["error_percent"], found["source"])


def size_of(hosts: int, tasks: Sequence[TaskLoad], costs: Costs) -> Size:
    """What so many hosts need that report these tasks, with one process a role of a fleet."""
    epochs_us = hosts / EPOCH_S * costs.epoch_us

    def us(role: Cost) -> float:
        return fsum(role.of(task.d) * hosts / task.window_s for task in tasks)

    roles = us(costs.leader) + epochs_us, us(costs.helper) + epochs_us, us(costs.broker) * REPLICAS
    leader, helper, broker = (role_us / 1e6 / BUSY for role_us in roles)
    bytes_s = fsum(
        (report_length(task.d, Scheme.MASKED) + OVERHEAD_BYTES) * hosts / task.window_s
        for task in tasks
    )
    return Size(
        fsum(hosts / task.window_s for task in tasks),
        leader,
        helper,
        broker,
        ceil(max(leader, helper)),
        max(REPLICAS, ceil(bytes_s * REPLICAS / BROKER_BYTES_S)),
        bytes_s,
        bytes_s * DAY_S,
        bytes_s * REPLICAS * RETENTION_S,
        float(hosts * sum(task.d for task in tasks) * Scheme.MASKED.word_bytes),
    )
