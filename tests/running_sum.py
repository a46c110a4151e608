"""Windows of one task added up word by word: what sums that the product makes are held against."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aggregator.protocol.released import Capacity
from aggregator.statistics.statistics import Cell, estimate
from wire.catalogue import Catalogue
from wire.task import Task


@dataclass(slots=True)
class RunningSum:
    """The sum of a task's windows so far; noise adds in quadrature, so means over windows sharpen.

    n           sum of the windows' accepted hosts
    capacity    None once a window came without
    """

    task: Task
    catalogue: Catalogue
    windows: int = 0
    n: int = 0
    capacity: Capacity | None = None
    _vector: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._vector = np.zeros(self.task.d, dtype=np.int64)

    def add(self, vector: npt.NDArray[np.int64], n: int, capacity: Capacity | None = None) -> None:
        if self.windows == 0:
            self.capacity = capacity
        elif self.capacity is not None:
            self.capacity = None if capacity is None else self.capacity + capacity
        self._vector += vector
        self.windows += 1
        self.n += n

    def estimate(self) -> list[Cell]:
        """Return the cells of the sum: values over all windows, shares of the whole time."""
        return estimate(self.task, self.catalogue, self._vector, self.n, self.capacity)
