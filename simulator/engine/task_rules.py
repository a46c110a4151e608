"""Tasks of a simulated fleet by its plan, and what is released of them by both parties' rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import build_task, task_plan
from aggregator.helper.batch_rules import check_release
from aggregator.protocol.interfaces import check_sum
from aggregator.protocol.released import Capacity
from aggregator.statistics.range_checks import SumRules
from privacy.calibrate import WEEK_S
from privacy.plan import Plan
from simulator.fleet.hosts import FleetState, HostInventory
from wire.catalogue import Catalogue
from wire.rejection import Reason, ReportRejected
from wire.task import DEMO_DOMAIN, Task

from .interface import WindowOutcome

LATENESS_S: Final = 30
RETENTION_S: Final = 6 * 3600
_MOST_GPUS: Final = 128
"""More than a host has."""
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
        # As many as the noise of an endless series counts on.
        least = planned.windows or -(-WEEK_S // planned.window_s) + 1
        end_s = within[0] + max(least, len(within)) * planned.window_s
        wanted = task_plan(
            sized,
            planned,
            range(within[0], end_s, planned.window_s),
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


def windows_within(window_s: int, span: tuple[int, int]) -> range:
    first = -(-span[0] // window_s) * window_s
    return range(first, span[1] - window_s + 1, window_s)


Number = TypeVar("Number", np.int64, np.uint32, np.float64)


def settled(
    task: Task,
    start: int,
    state: FleetState,
    released: NDArray[np.int64],
    truth: NDArray[np.int64],
    stages: Sequence[Mapping[str, float]],
    windows: int = 1,
) -> WindowOutcome:
    """Release a sum, or say why not.

    released    int64[d], steps, over the hosts that report in time and all the equal windows
    """
    in_time = state.reporting
    n = int(np.count_nonzero(in_time))
    late = int(np.count_nonzero(state.present & state.late))
    refused = {Reason.WINDOW_LATE.value: late * windows} if late else {}
    try:
        check_release(task, by_operator(state.inventory.operator[in_time]))
        check_sum(released, n * windows)
        SumRules().of(task, n * windows).check(released)
        fault = ""
    except ReportRejected as refusal:
        fault = refusal.reason.value
    done = not fault
    return WindowOutcome(
        start,
        released if done else None,
        n * windows if done else 0,
        refused,
        fault,
        task,
        merged(stages),
        truth,
        n * windows,
        windows,
        times(capacity_of(state.inventory, in_time), windows) if done else None,
    )


def by_operator(operators: NDArray[np.int16]) -> list[int]:
    """Count the hosts of each operator that has one; int16[n], operator of each host."""
    counts = np.bincount(operators)
    return counts[counts > 0].tolist()  # type: ignore[no-any-return]


def summed(parts: Sequence[NDArray[Number]]) -> NDArray[Number]:
    return reduce(np.add, parts)


def capacity_of(inventory: HostInventory, accepted: NDArray[np.bool_]) -> Capacity:
    """Count the accepted hosts' GPUs by model, as the roster has them."""
    # One number for both: to sort pairs takes a quarter of a simulated week.
    kinds = inventory.gpu_model[accepted].astype(np.int64) * _MOST_GPUS + inventory.gpus[accepted]
    hosts_of = np.bincount(kinds)
    found = np.flatnonzero(hosts_of)
    gpus_by_model: Counter[int] = Counter()
    squares_by_model: Counter[int] = Counter()
    for kind, hosts in zip(found.tolist(), hosts_of[found].tolist(), strict=True):
        model, gpus = divmod(kind, _MOST_GPUS)
        gpus_by_model[model] += gpus * hosts
        squares_by_model[model] += gpus * gpus * hosts
    largest = int(inventory.gpus[accepted].max(initial=0))
    return Capacity(dict(gpus_by_model), dict(squares_by_model), squares_by_model.total(), largest)


def times(capacity: Capacity, windows: int) -> Capacity:
    return Capacity(
        {model: gpus * windows for model, gpus in capacity.gpus_by_model.items()},
        {model: squares * windows for model, squares in capacity.squares_by_model.items()},
        capacity.squares * windows,
        capacity.largest,
    )


def merged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
