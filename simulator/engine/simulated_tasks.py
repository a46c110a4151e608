"""A plan's tasks for a simulated fleet: its cadences, weights and noise, over its own hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from aggregator.tasks import TaskPlan, build_task
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
    hosts = inventory.hosts
    largest = int(np.bincount(inventory.operator).max())
    several = np.unique(inventory.operator).size >= FEW_OPERATORS
    n_min = math.ceil(hosts * plan.n_min / plan.hosts)
    corrupted = max(math.ceil(hosts * plan.t / plan.hosts), math.ceil(hosts / 10))
    if several:
        corrupted = max(corrupted, largest)
    built = []
    for planned in plan.tasks:
        windows = windows_within(planned.window_s, span)
        if not windows:
            continue
        built.append(
            build_task(
                catalogue,
                TaskPlan(
                    series=planned.series,
                    domain=DEMO_DOMAIN,
                    window_s=planned.window_s,
                    first_window=windows[0],
                    last_window=windows[0] + planned.window_s * (_windows(planned, windows) - 1),
                    lateness_s=min(LATENESS_S, planned.window_s // 2),
                    retention_s=RETENTION_S,
                    weights={one.name: one.weight_millionths for one in planned.sections},
                    rates={one.name: one.rate_millionths for one in planned.sections},
                    gpus_per_host=int(inventory.gpus.max()),
                    epsilon_millionths=plan.epsilon_millionths,
                    delta_1e12=plan.delta_1e12,
                    n_max=hosts,
                    n_min=n_min,
                    t=corrupted,
                    largest_operator=largest if several else 0,
                    min_operators=min(plan.min_operators, FEW_OPERATORS) if several else 0,
                    leader_pk=parties[0],
                    helper_pk=parties[1],
                    expiry=span[1] + 10 * max(WEEK_S, planned.window_s),
                ),
            )
        )
    return built


def _windows(planned: PlannedTask, within: Sequence[int]) -> int:
    """Windows of the series: as many as the noise of an endless one counts on."""
    if planned.windows is not None:
        return max(planned.windows, len(within))
    return max(-(-WEEK_S // planned.window_s) + 1, len(within))


def windows_within(window_s: int, span: tuple[int, int]) -> range:
    """Starts of the whole windows within [first, end)."""
    first = -(-span[0] // window_s) * window_s
    return range(first, span[1] - window_s + 1, window_s)
