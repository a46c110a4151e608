"""A plan's tasks for a simulated fleet: its cadences, weights and noise, over its own hosts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from aggregator.tasks import build_task, task_plan
from privacy.calibrate import WEEK_S
from privacy.plan import Plan, PlannedTask
from simulator.fleet.hosts import HostInventory
from wire.catalogue import Catalogue
from wire.task import DEMO_DOMAIN, Task

LATENESS_S: Final = 30
RETENTION_S: Final = 6 * 3600
FEW_OPERATORS: Final = 3
"""With fewer operators the task is an operator's own: the operator rule does not apply."""


def fleet_tasks(
    plan: Plan,
    catalogue: Catalogue,
    inventory: HostInventory,
    span: tuple[int, int],
    parties: tuple[bytes, bytes],
) -> list[Task]:
    """Build every task of a plan that has a whole window within the span.

    plan        for its own number of hosts; n_min and t keep their share of the fleet's, and t
                covers the largest operator
    span        Unix seconds, [first, end)
    parties     identity keys of Leader and Helper; the tasks are of the domain demo, because the
                keys and everything under them live no longer than the simulation
    Raises      ParameterError where the fleet breaks a bound: an operator of over 40 % of the hosts
    """
    several = np.unique(inventory.operator).size >= FEW_OPERATORS
    largest = int(np.bincount(inventory.operator).max()) if several else 0
    sized = _sized(plan, inventory, largest)
    built = []
    for planned in plan.tasks:
        within = windows_within(planned.window_s, span)
        if not within:
            continue
        wanted = task_plan(
            sized,
            planned,
            _windows(planned, within),
            parties,
            domain=DEMO_DOMAIN,
            lateness_s=min(LATENESS_S, planned.window_s // 2),
            retention_s=RETENTION_S,
            largest_operator=largest,
            min_operators=min(plan.min_operators, FEW_OPERATORS) if several else 0,
            expiry=span[1] + 10 * max(WEEK_S, planned.window_s),
        )
        built.append(build_task(catalogue, wanted))
    return built


def _sized(plan: Plan, inventory: HostInventory, largest_operator: int) -> Plan:
    """The plan for as many hosts as the fleet has."""
    hosts = inventory.hosts
    corrupted = max(math.ceil(hosts * plan.t / plan.hosts), math.ceil(hosts / 10), largest_operator)
    return replace(
        plan,
        scheme="masked",
        hosts=hosts,
        n_min=math.ceil(hosts * plan.n_min / plan.hosts),
        t=corrupted,
        gpus_per_host=int(inventory.gpus.max()),
    )


def _windows(planned: PlannedTask, within: range) -> range:
    """Windows of the series: as many as the noise of an endless one counts on."""
    least = -(-WEEK_S // planned.window_s) + 1 if planned.windows is None else planned.windows
    count = max(least, len(within))
    return range(within[0], within[0] + count * planned.window_s, planned.window_s)


def windows_within(window_s: int, span: tuple[int, int]) -> range:
    """Starts of the whole windows within [first, end)."""
    first = -(-span[0] // window_s) * window_s
    return range(first, span[1] - window_s + 1, window_s)
