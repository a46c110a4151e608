"""The windows of many simulated hosts on the wall clock, for the production agent's loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import Record
from edge_agent.windows.window_accumulator import ClosedWindow
from wire.catalogue import Catalogue
from wire.fields import TaskId
from wire.task import CHECK_WORDS, Task

from .engine.blocks import BlockRows, Span
from .engine.engine_port import EngineSettings
from .fleet import FleetRows, FleetStates


@dataclass(frozen=True, slots=True)
class WindowTruth:
    """What the hosts truly did in a window that is on its way.

    hosts   those that report in time
    sums    int64[k], base units of the task's sections, summed over them
    """

    series: str
    start_s: int
    hosts: int
    sums: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LateHosts:
    """Hosts (places in the process) whose reports of a window are held back until it has closed."""

    closes_s: int
    hosts: frozenset[int]


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    next_window: int

    @property
    def next_end(self) -> int:
        return self.next_window + self.task.window_s


class SimulatedWindows:
    """Closes the windows of many hosts at once; implements edge_agent's `Windows`.

    late_hosts   window start -> whose reports the network holds back, where late ones are sent
    opened       tasks begun so far
    """

    def __init__(
        self,
        fleet: FleetStates,
        catalogue: Catalogue,
        spans: tuple[Span, ...],
        tell: Callable[[WindowTruth], None],
        *,
        block_hosts: int,
        until_s: float = math.inf,
        tasks: int | None = None,
        sends_late: bool = False,
    ) -> None:
        """Begin without a task.

        fleet       its time begins with the first window that closes
        spans       the hosts that are played here, in blocks of at most block_hosts
        until_s     Unix seconds: later windows are not closed
        tasks       how many there will be, where they are known to end
        sends_late  late reports are sent, for a network that holds them back; else they are left
                    out, since on the wall clock they would be refused
        """
        self._fleet, self._catalogue, self._tell = fleet, catalogue, tell
        settings = EngineSettings(seed=fleet.scenario.seed, block_hosts=block_hosts)
        self._rows = BlockRows(spans, settings)
        self._until_s, self._tasks, self._sends_late = until_s, tasks, sends_late
        self._part = slice(spans[0].lo, spans[-1].hi)
        self._shift_s: int | None = None
        self._open: list[_Open] = []
        self.late_hosts: dict[int, LateHosts] = {}
        self.opened = 0

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin with the first window that has not begun yet."""
        self._rows.learn(task.series, FleetRows(self._catalogue, task, self._fleet.applications))
        first = max(task.first_window, -(-now_s // task.window_s) * task.window_s)
        self._open = [window for window in self._open if window.task.series != task.series]
        self._open.append(_Open(task_id, task, first))
        self.opened += 1

    def add(self, record: Record) -> None:
        """Simulated hosts have no sources."""
        raise TypeError(f"simulated hosts take no records, got {type(record).__name__}")

    def next_end_s(self) -> int | None:
        """Give the end of the window that closes next."""
        return min((w.next_end for w in self._open if w.next_end <= self._until_s), default=None)

    def over(self, now_s: int) -> bool:
        """Whether no window will be closed any more."""
        if now_s >= self._until_s:
            return True
        return self._tasks is not None and self.opened >= self._tasks and not self._open

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Draw the rows of every window that has ended, and tell its truth.

        The oldest end first, then by series: a loop that comes late draws what one in time does,
        so that a seed repeats on any machine and over any log.
        """
        while due := [w for w in self._open if w.next_end <= min(now_s, self._until_s)]:
            window = min(due, key=lambda w: (w.next_end, w.task.window_s, w.task.series))
            yield self._close(window)
            window.next_window += window.task.window_s
            self._open = [w for w in self._open if w.next_window <= w.task.last_window]

    def follow_clock(self) -> None:
        """Windows follow the wall clock already."""

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None:
        """Simulated windows follow the scenario's time, which is never set back."""

    def persist(self) -> None:
        """A simulated host that restarts has lost its open windows."""

    def _close(self, window: _Open) -> ClosedWindow:
        task, start_s = window.task, window.next_window
        state = self._fleet.at(start_s - self._shift(), task.window_s)
        truth = np.zeros(task.d - CHECK_WORDS, dtype=np.int64)
        drawn = self._rows.draw(task, state, truth)
        rows = np.concatenate([block.rows.copy() for block in drawn])
        present, late = state.present[self._part], state.late[self._part]
        in_time = present & ~late
        if self._sends_late:
            held = frozenset(np.flatnonzero(present & late).tolist())
            closes_s = start_s + task.window_s + task.lateness_s
            self.late_hosts[start_s] = LateHosts(closes_s, held)
        self._tell(WindowTruth(task.series, start_s, int(np.count_nonzero(in_time)), truth))
        return ClosedWindow(window.task_id, start_s, rows, present if self._sends_late else in_time)

    def _shift(self) -> int:
        """Wall clock less the scenario's time, in whole steps of the fleet."""
        if self._shift_s is None:
            scenario = self._fleet.scenario
            begun_s = min(window.next_window for window in self._open) - scenario.start_s
            self._shift_s = begun_s // scenario.step_s * scenario.step_s
        return self._shift_s
