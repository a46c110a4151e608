"""The windows of a live host's tasks: which accumulator is open, and which windows have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import (
    HostTable,
    HostTicks,
    Observation,
    Record,
    RhythmMarks,
    StepMarks,
)
from wire.catalogue import Catalogue
from wire.fields import TaskId
from wire.task import Task

from .durable_windows import DurableAccumulators
from .window_accumulator import HostClock, WindowAccumulator

_ERASE_EVERY_S: Final = 600
DURABLE_FROM_S: Final = 3600
"""Windows at least this long are kept on disk: a restart must not empty a day or a week."""


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """A window that has ended.

    rows      int64[hosts, k], base units of the task's sections; one host on a live agent
    present   bool[hosts]; False for hosts that are down, which a live agent never is
    """

    task_id: TaskId
    start_s: int
    rows: NDArray[np.int64] = field(repr=False)
    present: NDArray[np.bool_] = field(repr=False)


class Windows(Protocol):
    """What the shell closes windows of: one host's accumulators, or the simulator's many hosts."""

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None: ...

    def add(self, record: Record) -> None: ...

    def next_end_s(self) -> int | None: ...

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]: ...

    def follow_clock(self) -> None: ...

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None: ...

    def persist(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WindowPreview:
    """A window in the making, for this host's own eyes: int64[k] raw row as it stands."""

    task: Task
    start_s: int
    row: NDArray[np.int64]


_LOCAL: Final = frozenset({HostTicks, HostTable, StepMarks, RhythmMarks})
"""What no window takes: it stays on this host."""


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    windows: WindowAccumulator
    sections: frozenset[str]
    last_s: int | None = None
    """Close this window and no later one: a newer version of the series takes over after it."""


class TaskWindows:
    """One accumulator per task; a new version begins where the old one's open window ends."""

    def __init__(
        self,
        catalogue: Catalogue,
        gpus: Sequence[str],
        store: DurableAccumulators | None,
        host_clock: Callable[[], HostClock] = HostClock.now,
    ) -> None:
        self._catalogue = catalogue
        self._gpus = tuple(gpus)
        self._store = store
        self._host_clock = host_clock
        self._open: list[_Open] = []
        self._erase_at_s = 0

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin to gather a task's windows."""
        store = self._store if task.window_s >= DURABLE_FROM_S else None
        if store is not None:
            store.erase_before(task.series, now_s - task.window_s - task.retention_s)
        kept = store.windows(task.series) if store is not None else []
        first = min([*kept, now_s])
        for old in self._open:
            if old.task.series == task.series and old.last_s is None:
                old.last_s = old.windows.next_window
                first = old.last_s + task.window_s
        accumulator = WindowAccumulator(
            self._catalogue,
            task,
            self._gpus,
            clock=self._host_clock(),
            store=store,
            first_window=first,
        )
        sections = frozenset(section.name for section in task.sections)
        self._open.append(_Open(task_id, task, accumulator, sections))

    def add(self, record: Record) -> None:
        """Give a record to every task; each takes what its sections name."""
        if type(record) in _LOCAL:
            return
        section = record.section if isinstance(record, Observation) else None
        for open_task in self._open:
            if section is None or section in open_task.sections:
                open_task.windows.add(record)

    def next_end_s(self) -> int | None:
        """Give the end of the window that closes next."""
        return min((o.windows.next_window + o.task.window_s for o in self._open), default=None)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Close every window whose end has passed, oldest first, and drop finished tasks."""
        self._forget_expired(now_s)
        for open_task in list(self._open):
            # A clock that jumps ahead passes windows that nobody takes any more: leave them out.
            open_task.windows.skip_to(now_s - open_task.task.window_s - open_task.task.retention_s)
            while open_task.windows.next_window + open_task.task.window_s <= now_s:
                start_s = open_task.windows.next_window
                if open_task.last_s is not None and start_s > open_task.last_s:
                    break
                row = open_task.windows.close(start_s)
                if open_task.task.first_window <= start_s <= open_task.task.last_window:
                    here = np.ones(1, dtype=np.bool_)
                    yield ClosedWindow(open_task.task_id, start_s, row.reshape(1, -1), here)
                open_task.windows.forget(start_s)
        self._open = [open_task for open_task in self._open if not _finished(open_task)]

    def _forget_expired(self, now_s: int) -> None:
        """Erase what no report can need: also of a series that ended while the agent was down."""
        if self._store is not None and now_s >= self._erase_at_s:
            self._store.erase_expired(now_s)
            self._erase_at_s = now_s + _ERASE_EVERY_S

    def open_windows(self) -> Iterator[WindowPreview]:
        """Give every task's open window as it stands; nothing changes by looking."""
        for open_task in self._open:
            start_s = open_task.windows.next_window
            yield WindowPreview(open_task.task, start_s, open_task.windows.preview(start_s))

    def follow_clock(self) -> None:
        """Map the boot clock to the wall clock anew: only the wall clock is disciplined."""
        clock = self._host_clock()
        for open_task in self._open:
            open_task.windows.set_clock(clock)

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None:
        """Begin with the windows that hold the present again: the clock was ahead.

        Long windows go on with what the disk holds of them; of short ones the present is lost.
        """
        self.persist()
        self._open.clear()
        self._erase_at_s = 0
        for task_id, task in tasks.items():
            self.open_task(task_id, task, now_s)

    def persist(self) -> None:
        """Write the open long windows to disk."""
        for open_task in self._open:
            open_task.windows.persist()


def _finished(open_task: _Open) -> bool:
    past = open_task.task.last_window if open_task.last_s is None else open_task.last_s
    return open_task.windows.next_window > past
