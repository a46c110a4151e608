"""The windows of a live host's tasks: which accumulator is open, and which windows have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wire.catalogue import Catalogue
from wire.ids import TaskId
from wire.task import Task

from .accumulators import DurableAccumulators
from .activity import KernelActivity, Observation
from .windows import HostClock, WindowAccumulator

DURABLE_FROM_S: Final = 3600
"""Windows at least this long are kept on disk: a restart must not empty a day or a week."""


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window that has ended, with its raw row int64[k]."""

    task_id: TaskId
    start_s: int
    row: NDArray[np.int64]


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    windows: WindowAccumulator
    last_s: int | None = None
    """Close this window and no later one: a newer version of the series takes over after it."""


class TaskWindows:
    """One accumulator per task; a new version begins where the old one's open window ends."""

    def __init__(
        self,
        catalogue: Catalogue,
        gpus: Sequence[str],
        store: DurableAccumulators | None,
        *,
        gpus_watched_since_ns: int | None,
    ) -> None:
        """Take the host's GPU models, and from when on a source watches them (CLOCK_BOOTTIME)."""
        self._catalogue = catalogue
        self._gpus = tuple(gpus)
        self._store = store
        self._gpus_watched_since_ns = gpus_watched_since_ns
        self._open: list[_Open] = []

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin to gather a task's windows."""
        store = self._store if task.window_s >= DURABLE_FROM_S else None
        if store is not None:
            store.erase_before(task.series, now_s - task.window_s - task.retention_s)
        first: int | None = None
        for old in self._open:
            if old.task.series == task.series and old.last_s is None:
                old.last_s = old.windows.next_window
                first = old.last_s + task.window_s
        accumulator = WindowAccumulator(
            self._catalogue, task, self._gpus, store=store, first_window=first
        )
        accumulator.watch(range(len(self._gpus)), self._gpus_watched_since_ns)
        self._open.append(_Open(task_id, task, accumulator))

    def add(self, record: KernelActivity | Observation) -> None:
        """Give a record to every task; each takes what its sections name."""
        for one in self._open:
            one.windows.add(record)

    def next_end_s(self) -> int | None:
        """Give the end of the window that closes next."""
        return min((o.windows.next_window + o.task.window_s for o in self._open), default=None)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Close every window whose end has passed, oldest first, and drop finished tasks."""
        for one in list(self._open):
            while one.windows.next_window + one.task.window_s <= now_s:
                start_s = one.windows.next_window
                if one.last_s is not None and start_s > one.last_s:
                    break
                row = one.windows.close(start_s)
                if one.task.first_window <= start_s <= one.task.last_window:
                    yield ClosedWindow(one.task_id, start_s, row)
                one.windows.forget(start_s)
        self._open = [one for one in self._open if not _finished(one)]

    def follow_clock(self) -> None:
        """Map the boot clock to the wall clock anew: only the wall clock is disciplined."""
        clock = HostClock.now()
        for one in self._open:
            one.windows.set_clock(clock)

    def persist(self) -> None:
        """Write the open long windows to disk."""
        for one in self._open:
            one.windows.persist()


def _finished(one: _Open) -> bool:
    past = one.task.last_window if one.last_s is None else one.last_s
    return one.windows.next_window > past
