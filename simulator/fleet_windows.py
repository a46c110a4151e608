"""The windows of many simulated hosts, and the truth that only a simulation can write down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import Record
from edge_agent.windows.task_windows import ClosedWindow
from wire.catalogue import Catalogue
from wire.ids import TaskId
from wire.task import Task

from .streams import stream
from .workload_rows import WorkloadSampler
from .workloads import Workload

IDLE_SHARE: Final = 0.06
"""Share of hosts that run nothing at all."""

POPULARITY: Final = {
    "llm_inference": 6.0,
    "data_parallel_training": 5.0,
    "video_classification": 3.0,
    "recommendation": 2.0,
    "object_detection": 2.0,
    "moe_inference": 1.5,
    "image_classification": 1.0,
    "text_encoder": 1.0,
}
"""How often an application is met, relative to the others; chosen, not measured. Any other: 1."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What the hosts of one process truly did in one window.

    hosts   those that reported in time
    sums    int64[k], base units of the task's sections, summed over them
    """

    task: Task
    window_start_s: int
    hosts: int
    sums: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FleetShape:
    """A slice of the fleet.

    first_host      index of its first host in the whole fleet
    dropout, late   share of hosts that are down in a window; whose report comes too late
    seed            None: nothing repeats
    """

    first_host: int
    hosts: int
    gpus_per_host: int
    dropout: float
    late: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class LateHosts:
    """Hosts (indices in the slice) whose reports of a window are held back until it has closed."""

    closes_s: int
    hosts: frozenset[int]


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    sampler: WorkloadSampler
    next_window: int


@dataclass(slots=True)
class FleetWindows:
    """Closes the windows of every host of a slice at once; implements edge_agent's `Windows`.

    late_hosts   window start -> whose reports the network holds back
    opened       tasks begun so far
    """

    catalogue: Catalogue
    workloads: Sequence[Workload]
    shape: FleetShape
    tell: Callable[[Truth], None]
    late_hosts: dict[int, LateHosts] = field(default_factory=dict)
    opened: int = 0
    _open: list[_Open] = field(default_factory=list)

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin with the first window that has not begun yet."""
        sampler = WorkloadSampler(self.catalogue, task, self.workloads)
        first = max(task.first_window, -(-now_s // task.window_s) * task.window_s)
        self._open.append(_Open(task_id, task, sampler, first))
        self.opened += 1

    def add(self, record: Record) -> None:
        """Simulated hosts have no sources."""
        raise TypeError(f"simulated hosts take no records, got {type(record).__name__}")

    def next_end_s(self) -> int | None:
        """Give the end of the window that closes next."""
        return min((o.next_window + o.task.window_s for o in self._open), default=None)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Draw the rows of every window that has ended, and write its truth down.

        The oldest end first, then by series: a loop that comes late draws what one in time does,
        so that a seed repeats on any machine and over any log.
        """
        while due := [one for one in self._open if self._due(one, now_s)]:
            one = min(due, key=lambda one: (one.next_window + one.task.window_s, one.task.series))
            yield self._close(one)
            one.next_window += one.task.window_s
        self._open = [one for one in self._open if one.next_window <= one.task.last_window]

    def follow_clock(self) -> None:
        """Windows follow the wall clock already."""

    def persist(self) -> None:
        """A simulated host that restarts has lost its open windows."""

    @staticmethod
    def _due(one: _Open, now_s: int) -> bool:
        ended = one.next_window + one.task.window_s <= now_s
        return ended and one.next_window <= one.task.last_window

    def _close(self, one: _Open) -> ClosedWindow:
        shape, start_s = self.shape, one.next_window
        number = (start_s - one.task.first_window) // one.task.window_s
        gpus = np.full(shape.hosts, shape.gpus_per_host, dtype=np.int64)
        rng = stream(shape.seed, "rows", one.task.series, shape.first_host, number)
        rows = one.sampler.sample_rows(self.assignment(), gpus, one.task.window_s, rng)
        present, late = self._attendance(one.task, start_s, number)
        in_time = present & ~late
        sums = rows[in_time].sum(axis=0)
        self.tell(Truth(one.task, start_s, int(in_time.sum()), sums))
        return ClosedWindow(one.task_id, start_s, rows, present)

    def assignment(self) -> NDArray[np.int64]:
        """Say which workload each host runs; IDLE_HOST for those that run none."""
        shape = self.shape
        rng = stream(shape.seed if shape.seed is not None else 0, "work", shape.first_host)
        names = [workload.application for workload in self.workloads]
        popularity = np.array([POPULARITY.get(n, 1.0) / names.count(n) for n in names])
        chances = np.append(popularity / popularity.sum() * (1 - IDLE_SHARE), IDLE_SHARE)
        kinds = np.append(np.arange(len(self.workloads)), -1)
        return np.asarray(rng.choice(kinds, size=shape.hosts, p=chances), dtype=np.int64)

    def _attendance(
        self, task: Task, start_s: int, number: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Say who is up, and whose reports the network holds back: those of all its tasks."""
        shape = self.shape
        rng = stream(shape.seed, "attendance", task.series, shape.first_host, number)
        present = rng.random(shape.hosts) >= shape.dropout
        late = rng.random(shape.hosts) < shape.late
        if start_s in self.late_hosts:
            late = np.isin(np.arange(shape.hosts), list(self.late_hosts[start_s].hosts))
        held = frozenset(np.flatnonzero(present & late).tolist())
        closes_s = start_s + task.window_s + task.lateness_s
        self.late_hosts.setdefault(start_s, LateHosts(closes_s, held))
        return present, late
