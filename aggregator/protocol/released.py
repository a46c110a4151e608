"""What the Leader hands to the store: one released window, and nothing about any host in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from wire.task import Task


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the roster says about the accepted hosts, so that shares of wall time can be told.

    gpus_by_model       GPU model index -> GPUs of the accepted hosts
    squares_by_model    GPU model index -> sum over the hosts of (their GPUs of this model)^2
    squares             sum over the hosts of (all their GPUs)^2; says how unequal they are
    largest             GPUs of the host that has most; 0 where that is not known
    """

    gpus_by_model: Mapping[int, int]
    squares_by_model: Mapping[int, int]
    squares: int
    largest: int = 0

    @property
    def gpus(self) -> int:
        return sum(self.gpus_by_model.values())

    @staticmethod
    def of(hosts: Iterable[tuple[tuple[int, int], ...]]) -> Capacity:
        """Add up the `gpu_models` (model index, GPUs) of the accepted hosts' roster entries.

        A fleet has few kinds of hosts, so kinds are counted first: 0.1 us a host instead of 6.
        """
        by_model: Counter[int] = Counter()
        squares_by_model: Counter[int] = Counter()
        squares = largest = 0
        for models, count in Counter(hosts).items():
            for model, gpus in models:
                by_model[model] += gpus * count
                squares_by_model[model] += gpus * gpus * count
            gpus_of_host = sum(gpus for _, gpus in models)
            squares += gpus_of_host**2 * count
            largest = max(largest, gpus_of_host)
        return Capacity(dict(by_model), dict(squares_by_model), squares, largest)

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(
            dict(Counter(self.gpus_by_model) + Counter(other.gpus_by_model)),
            dict(Counter(self.squares_by_model) + Counter(other.squares_by_model)),
            self.squares + other.squares,
            max(self.largest, other.largest) if self.largest and other.largest else 0,
        )


@dataclass(frozen=True, slots=True)
class ReleasedWindow:
    """One settled window of one cohort, free of host and report ids.

    window_start_s   int, unix seconds, a multiple of task.window_s
    n                accepted hosts, known to both aggregators
    vector           int64[task.d], steps, signed lift of the unmasked sum, check words at 0 and 1
    rejections       reason -> reports refused for this window, by the Leader and by the Helper
    closed_s         unix seconds at which the batch was closed
    released_s       unix seconds at which the vector was unmasked
    capacity         GPUs of the accepted hosts; without it shares divide by the section's own sum
    """

    task_id: bytes
    task: Task
    cohort: int
    window_start_s: int
    n: int
    vector: npt.NDArray[np.int64]
    rejections: Mapping[str, int]
    closed_s: float
    released_s: float
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class SuppressedWindow:
    """A window that ended without a release, and why.

    reason                      a `Reason` value
    hosts                       hosts that had reported
    window_s, version, n_min    of its task; None when the task is gone for good
    settled_s                   unix seconds
    """

    series: str
    cohort: int
    window_start_s: int
    window_s: int | None
    version: int | None
    reason: str
    hosts: int
    n_min: int | None
    settled_s: float


class ReleaseStore(Protocol):
    """Where releases go; writing the same window twice changes nothing.

    Every method raises StorageUnavailable where the disk takes nothing now.
    """

    def write(self, release: ReleasedWindow) -> None:
        """Keep one release; idempotent on (task_id, cohort, window_start_s)."""

    def repair(self) -> int:
        """Complete what a crash left half done; says how much that was."""

    def suppress(self, window: SuppressedWindow) -> None:
        """Keep that a window ended without a release; idempotent."""

    def tidy(self, now_s: float) -> None:
        """Keep house, a little at each call: closed days are packed, what is too old goes."""
