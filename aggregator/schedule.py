"""Which windows the tasks name, so that every one of them ends: released, or suppressed and why.

A task names the windows that begin after the Leader accepted it and before the Leader accepted its
next version, for each cohort that has hosts when they begin: hosts finish the window that they are
in under the version they have. Other windows end as well, where reports of them come.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

from .directory import Directory, KnownTask
from .helper_state import BatchKey
from .leader_windows import Chain

Lane = tuple[bytes, int]
"""(task_id, cohort): its windows end in their order."""


class Schedule:
    """The windows that have yet to end."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._next: dict[Lane, int] = {}

    def resume(self, ended: Mapping[Lane, int]) -> None:
        """Take over the last window of each lane that ended before a restart."""
        for (identity, cohort), window in ended.items():
            if identity in self._directory.tasks:
                self.ended(BatchKey(identity, cohort, window))

    def ended(self, key: BatchKey) -> None:
        """Note that a window ended, and with it every earlier one of its lane."""
        after = self._directory.tasks[key.task_id].window_end(key.window)
        lane = key.task_id, key.cohort
        self._next[lane] = max(self._next.get(lane, after), after)

    def forget(self) -> None:
        """Drop what belongs to tasks that are no longer known."""
        known = self._directory.tasks
        self._next = {lane: at for lane, at in self._next.items() if lane[0] in known}

    def over(self, opened: Collection[BatchKey], now_s: float) -> Iterator[Iterator[BatchKey]]:
        """For each chain, the windows that are over and have not ended, in their order, lazily.

        opened      windows that hosts have reported
        """
        waiting: dict[Chain, list[Iterator[BatchKey]]] = {}
        for known, cohort in self._lanes():
            due = self._due(known, cohort, now_s)
            waiting.setdefault((known.task.series, cohort), []).append(due)
        reported: dict[Chain, list[BatchKey]] = {}
        for key in sorted(opened, key=_in_time):
            series = self._directory.tasks[key.task_id].task.series
            reported.setdefault((series, key.cohort), []).append(key)
        for chain in waiting.keys() | reported.keys():
            lanes = waiting.get(chain, [])
            yield _once(heapq.merge(reported.get(chain, []), *lanes, key=_in_time))

    def _lanes(self) -> Iterator[tuple[KnownTask, int]]:
        for known in self._directory.tasks.values():
            for cohort in self._directory.cohorts(known.task.series):
                yield known, cohort

    def _due(self, known: KnownTask, cohort: int, now_s: float) -> Iterator[BatchKey]:
        """The windows of a lane that the task names and that are over, oldest first."""
        named, window_s = self.named(known), known.task.window_s
        first = max(named.start, self._next.get((known.task_id, cohort), named.start))
        until = min(named.stop, int(now_s) - window_s + 1)
        for window in range(first, until, window_s):
            roster = self._directory.roster_at(window)
            if roster is not None and cohort in roster.hosts(known.task.series):
                yield BatchKey(known.task_id, cohort, window)

    def named(self, known: KnownTask) -> range:
        """The starts, seconds, of the windows that a task names, whoever is on the roster."""
        task, tasks = known.task, self._directory.tasks.values()
        begin = max(task.first_window, known.accepted_s)
        newer = [
            other.accepted_s
            for other in tasks
            if other.task.series == task.series and other.task.version > task.version
        ]
        # Hosts report no window that ends when the task has expired.
        until = min(task.last_window + 1, task.expiry - task.window_s, *newer)
        return range(-int(-begin // task.window_s) * task.window_s, int(until), task.window_s)


def _once(keys: Iterator[BatchKey]) -> Iterator[BatchKey]:
    last: BatchKey | None = None
    for key in keys:
        if key != last:
            yield key
        last = key


def _in_time(key: BatchKey) -> tuple[int, bytes]:
    return key.window, key.task_id
