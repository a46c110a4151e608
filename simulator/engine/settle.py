"""From a fleet's summed vector to an outcome, by the rules that both parties apply to a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregator.batch_rules import check_release, check_sum
from aggregator.released import Capacity
from simulator.fleet.hosts import FleetState, HostInventory
from wire.rejection import Reason, ReportRejected
from wire.task import Task

from .engine_port import WindowOutcome
from .stage_seconds import merged

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

    released    int64[d], steps, over the hosts that report in time and all the windows
    windows     equal ones: the same hosts report in each
    """
    in_time = state.reporting
    n = int(np.count_nonzero(in_time))
    late = int(np.count_nonzero(state.present & state.late))
    refused = {Reason.WINDOW_LATE.value: late * windows} if late else {}
    try:
        check_release(task, by_operator(state.inventory.operator[in_time]))
        check_sum(released, n * windows)
        fault = ""
    except ReportRejected as refusal:
        fault = refusal.reason.value
    done = not fault
    return WindowOutcome(
        task,
        start,
        released if done else None,
        n * windows if done else 0,
        refused,
        fault,
        merged(list(stages)),
        truth,
        n * windows,
        windows,
        times(capacity_of(state.inventory, in_time), windows) if done else None,
    )


def by_operator(operators: NDArray[np.int16]) -> list[int]:
    """Count the hosts of each operator that has one.

    operators   int16[n], operator of each host
    """
    counts = np.bincount(operators)
    return counts[counts > 0].tolist()  # type: ignore[no-any-return]


def summed(parts: Sequence[NDArray[Number]]) -> NDArray[Number]:
    """Add the processes' vectors, words modulo 2^32 as such."""
    return reduce(np.add, parts)


def capacity_of(inventory: HostInventory, accepted: NDArray[np.bool_]) -> Capacity:
    """Count the accepted hosts' GPUs by model, as the roster has them."""
    models = inventory.gpu_model[accepted].tolist()
    gpus = inventory.gpus[accepted].tolist()
    kinds = Counter(zip(models, gpus, strict=True))
    return Capacity.of(
        ((model, count),) for (model, count), hosts in kinds.items() for _ in range(hosts)
    )


def times(capacity: Capacity, windows: int) -> Capacity:
    """Capacity of so many equal windows together."""
    return Capacity(
        {model: gpus * windows for model, gpus in capacity.gpus_by_model.items()},
        {model: squares * windows for model, squares in capacity.squares_by_model.items()},
        capacity.squares * windows,
    )
