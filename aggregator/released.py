"""What the Leader hands to the store: one released window, and nothing about any host in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from wire.task import Task


@dataclass(frozen=True, slots=True)
class ReleasedWindow:
    """One settled window of one cohort, free of host and report ids.

    window_start_s   int, unix seconds, a multiple of task.window_s
    n                accepted hosts, known to both aggregators
    vector           int64[task.d], steps, signed lift of the unmasked sum, check words at 0 and 1
    rejections       reason -> reports refused for this window, by the Leader and by the Helper
    closed_s         unix seconds at which the batch was frozen
    released_s       unix seconds at which the vector was unmasked
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


class ReleaseStore(Protocol):
    """Where releases go; writing the same window twice changes nothing."""

    def write(self, release: ReleasedWindow) -> None:
        """Keep one release; idempotent on (task_id, cohort, window_start_s)."""
        ...
