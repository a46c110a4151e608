"""The windows of a simulated fleet on the wall clock, for the production agent's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import Record
from edge_agent.windows.task_windows import ClosedWindow
from simulator.fleet import FleetModel, FleetRows, block_rng
from simulator.scenario import Scenario
from wire.catalogue import Catalogue
from wire.ids import TaskId
from wire.task import Task

_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class ExportedWindow:
    """What the hosts truly did in a window that is on its way; sums int64[k] in base units."""

    series: str
    start_s: int
    hosts: int
    sums: NDArray[np.int64] = field(repr=False)


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    rows: FleetRows
    next_window: int

    @property
    def next_end(self) -> int:
        return self.next_window + self.task.window_s


@dataclass(slots=True)
class ScenarioWindows:
    """Closes the windows of every host at once; implements edge_agent's `Windows`.

    scenario    its time begins with the first task: a scenario's Thursday noon is now
    sections    that the catalogue has; a task with others is left alone
    until_s     Unix seconds: later windows are not closed
    """

    scenario: Scenario
    catalogue: Catalogue
    tell: Callable[[ExportedWindow], None]
    until_s: float
    opened: int = 0
    _model: FleetModel | None = None
    _shift_s: int = 0
    _open: list[_Open] = field(default_factory=list)

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin with the first window that has not begun yet."""
        if self._model is None:
            self._model = FleetModel(self.scenario, self.catalogue)
            # In whole days, so that the hour of the day, and with it the load, stays.
            self._shift_s = (now_s - self.scenario.start_s) // 86_400 * 86_400
            late = now_s - self._shift_s - self.scenario.start_s
            self._shift_s += late // self.scenario.step_s * self.scenario.step_s
        rows = FleetRows(self.catalogue, task, self._model.applications)
        first = max(task.first_window, -(-now_s // task.window_s) * task.window_s)
        self._open = [one for one in self._open if one.task.series != task.series]
        self._open.append(_Open(task_id, task, rows, first))
        self.opened += 1

    def add(self, record: Record) -> None:
        """Simulated hosts have no sources."""
        raise TypeError(f"simulated hosts take no records, got {type(record).__name__}")

    def next_end_s(self) -> int | None:
        """Give the end of the window that closes next."""
        ends = [one.next_end for one in self._open if one.next_end <= self.until_s]
        return min(ends, default=None)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Draw the rows of every window that has ended, in the order of their ends."""
        while True:
            due = [o for o in self._open if o.next_end <= min(now_s, self.until_s)]
            due = [o for o in due if o.next_window <= o.task.last_window]
            if not due:
                return
            one = min(due, key=lambda o: (o.next_end, o.task.window_s))
            yield self._close(one)
            one.next_window += one.task.window_s

    def follow_clock(self) -> None:
        """Windows follow the wall clock already."""

    def persist(self) -> None:
        """A simulated host that restarts has lost its open windows."""

    def _close(self, one: _Open) -> ClosedWindow:
        if self._model is None:
            raise RuntimeError("expected a task before a window, got none")
        start_s = one.next_window - self._shift_s
        state = self._model.at(max(start_s, self.scenario.start_s), one.task.window_s)
        blocks = []
        for lo in range(0, state.hosts, _BLOCK):
            rng = block_rng(self.scenario.seed, one.task.series, start_s, lo // _BLOCK)
            blocks.append(one.rows.block(state, lo, min(lo + _BLOCK, state.hosts), rng))
        rows = np.concatenate(blocks)
        # A report that would come too late is not sent: on the wall clock it would be refused.
        present = state.reporting
        self.tell(
            ExportedWindow(
                one.task.series,
                one.next_window,
                int(np.count_nonzero(present)),
                rows[present].sum(axis=0),
            )
        )
        return ClosedWindow(one.task_id, one.next_window, rows, present)
