"""Windows of one task added up word by word: what sums that the product makes are held against."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aggregator.protocol.released import Capacity, CoarseCapacity, CoarseCount, CoarseCounts
from aggregator.statistics.statistics import Cell, estimate
from wire.catalogue import Catalogue
from wire.task import Task


@dataclass(slots=True)
class RunningSum:
    """The sum of a task's windows so far; noise adds in quadrature, so means over windows sharpen.

    counts      of the windows' accepted hosts, added up; GPUs None once a window came without
    """

    task: Task
    catalogue: Catalogue
    windows: int = 0
    counts: CoarseCounts | None = None
    _vector: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._vector = np.zeros(self.task.d, dtype=np.int64)

    def add(self, vector: npt.NDArray[np.int64], n: int, capacity: Capacity | None = None) -> None:
        own = CoarseCounts.of(self.task, n, capacity)
        self.counts = own if self.counts is None else _added(self.counts, own)
        self._vector += vector
        self.windows += 1

    def estimate(self) -> list[Cell]:
        """Return the cells of the sum: values over all windows, shares of the whole time."""
        assert self.counts is not None
        return estimate(self.task, self.catalogue, self._vector, self.counts)


def _added(a: CoarseCounts, b: CoarseCounts) -> CoarseCounts:
    hosts = _sum(a.hosts, b.hosts)
    if a.capacity is None or b.capacity is None:
        return CoarseCounts(hosts, None)
    x, y = a.capacity, b.capacity
    models = x.by_model.keys() & y.by_model.keys()
    return CoarseCounts(
        hosts,
        CoarseCapacity(
            _sum(x.gpus, y.gpus),
            {model: _sum(x.by_model[model], y.by_model[model]) for model in models},
            x.squares + y.squares,
            {model: x.squares_by_model[model] + y.squares_by_model[model] for model in models},
            x.few_gpus + y.few_gpus,
        ),
    )


def _sum(a: CoarseCount, b: CoarseCount) -> CoarseCount:
    return CoarseCount(a.value + b.value, a.bound + b.bound)
