"""Which windows the tasks name, so that every one of them ends, and when each closes.

A task names the windows that begin after the Leader accepted it and before the Leader accepted its
next version, for each cohort that has hosts when they begin: hosts finish the window that they are
in under the version they have. Other windows end as well, where reports of them come.

A window closes when nothing in it is waited for any more: at once when it is complete, else when
its lateness ends, or after an outage of the log when every host has had the time to send again. A
window with too few hosts for a release loses nothing by waiting longer, so it does: one window
more, and while nobody at all is heard.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from aggregator.protocol.answers import BatchKey
from aggregator.protocol.directory import Directory, KnownTask

from .leader_windows import EARLY_CLOSE_PERCENT, Chain, freeze_early
from .log_watch import RESEND_S, LogWatch
from .window_sums import OpenWindow

TaskCohort = tuple[bytes, int]
"""(task_id, cohort): its windows end in their order."""


class Schedule:
    """The windows that have yet to end."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._next: dict[TaskCohort, int] = {}

    def resume(self, ended: Mapping[TaskCohort, int]) -> None:
        """Take over the last window of each task and cohort that ended before a restart."""
        for (identity, cohort), window in ended.items():
            if identity in self._directory.tasks:
                self.ended(BatchKey(identity, cohort, window))

    def ended(self, key: BatchKey) -> None:
        """Note that a window ended, and with it every earlier one of its task and cohort."""
        after = self._directory.tasks[key.task_id].window_end(key.window)
        pair = key.task_id, key.cohort
        self._next[pair] = max(self._next.get(pair, after), after)

    def forget(self) -> None:
        """Drop what belongs to tasks that are no longer known."""
        known = self._directory.tasks
        self._next = {pair: at for pair, at in self._next.items() if pair[0] in known}

    def over(self, opened: Collection[BatchKey], now_s: float) -> Iterator[Iterator[BatchKey]]:
        """For each chain, the windows that are over and have not ended, in their order, lazily.

        opened      windows that hosts have reported
        """
        waiting: dict[Chain, list[Iterator[BatchKey]]] = {}
        for known, cohort in self._pairs():
            due = self._due(known, cohort, now_s)
            waiting.setdefault((known.task.series, cohort), []).append(due)
        reported: dict[Chain, list[BatchKey]] = {}
        for key in sorted(opened, key=_in_time):
            series = self._directory.tasks[key.task_id].task.series
            reported.setdefault((series, key.cohort), []).append(key)
        for chain in waiting.keys() | reported.keys():
            lanes = waiting.get(chain, [])
            yield _once(heapq.merge(reported.get(chain, []), *lanes, key=_in_time))

    def _pairs(self) -> Iterator[tuple[KnownTask, int]]:
        for known in self._directory.tasks.values():
            for cohort in self._directory.cohorts(known.task.series):
                yield known, cohort

    def _due(self, known: KnownTask, cohort: int, now_s: float) -> Iterator[BatchKey]:
        """The windows of a cohort that the task names and that are over, oldest first."""
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
        # Hosts report no window whose lateness ends when the task has expired.
        in_time = task.expiry - task.window_s - task.lateness_s
        until = min(task.last_window + 1, in_time, *newer)
        return range(-int(-begin // task.window_s) * task.window_s, int(until), task.window_s)


def _once(keys: Iterator[BatchKey]) -> Iterator[BatchKey]:
    last: BatchKey | None = None
    for key in keys:
        if key != last:
            yield key
        last = key


def _in_time(key: BatchKey) -> tuple[int, bytes]:
    return key.window, key.task_id


HELPER_S: Final = 120.0
"""A window closes so long before its retention or its task ends: later the Helper is silent."""


class CloseRule:
    """Says when windows close, by the Leader's clock and by what it knows of the log."""

    def __init__(self, directory: Directory, watch: LogWatch) -> None:
        self._directory, self._watch = directory, watch

    def closes(
        self,
        known: KnownTask,
        key: BatchKey,
        window: OpenWindow | None,
        before: tuple[int, frozenset[bytes]],
        now_s: float,
    ) -> bool:
        """Whether a window takes no further report.

        window      what it has gathered, None when nobody has reported it
        before      start and hosts of the window that closed last in its chain
        """
        end_s = known.window_end(key.window)
        if now_s < end_s:
            return False
        if window is not None and window.refused_whole:
            return now_s >= end_s + known.task.lateness_s  # nothing more of it is taken
        hosts = 0 if window is None else window.n
        enough = hosts >= known.task.n_min
        if window is not None and enough and self._complete(known, key, window, before):
            return True
        return now_s >= self._until_s(known, key.window, enough, now_s)

    def _complete(
        self,
        known: KnownTask,
        key: BatchKey,
        window: OpenWindow,
        before: tuple[int, frozenset[bytes]],
    ) -> bool:
        """Whether nearly all hosts have reported: of the window before, or of the roster."""
        roster = self._directory.roster_at(key.window)
        on_roster = 0 if roster is None else roster.hosts(known.task.series).get(key.cohort, 0)
        if on_roster and window.n * 100 >= on_roster * EARLY_CLOSE_PERCENT:
            return True
        return freeze_early(window, before, key.window - known.task.window_s)

    def _until_s(self, known: KnownTask, window: int, enough: bool, now_s: float) -> float:
        task, over_s = known.task, known.over_s(window)
        due_s = known.window_end(window) + task.lateness_s
        until_s = max(due_s, self._watch.resent_s)
        if not enough:
            silent = self._watch.silent(now_s, self.shortest_s(now_s))
            longer_s = min(RESEND_S, task.window_s)
            until_s = float("inf") if silent else max(until_s, due_s + longer_s)
        return min(until_s, max(due_s, over_s - HELPER_S))

    def shortest_s(self, now_s: float) -> int:
        """The shortest window of the tasks that hosts report now; a day where there is none."""
        return min(
            (
                known.task.window_s
                for known in self._directory.tasks.values()
                if known.task.first_window + known.task.window_s <= now_s < known.task.expiry
                and now_s < known.window_end(known.task.last_window) + known.task.window_s
            ),
            default=86_400,
        )
